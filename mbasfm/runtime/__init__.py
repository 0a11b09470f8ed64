"""Processes, threads, progress; no mathematics."""
