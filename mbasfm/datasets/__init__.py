"""Published benchmarks in the layout in which they are published."""
