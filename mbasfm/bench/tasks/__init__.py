"""Kinds of benchmarks, one file each."""
