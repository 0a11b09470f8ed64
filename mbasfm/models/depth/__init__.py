"""Depth models, one adapter per file."""
