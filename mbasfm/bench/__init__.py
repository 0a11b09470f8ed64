"""Benchmarks: recipes run over datasets, methods side by side."""
