"""Depth models and matchers, one adapter per file, found by entry points."""
