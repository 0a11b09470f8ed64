"""Depth models and matchers, one adapter per file, found through entry points."""
