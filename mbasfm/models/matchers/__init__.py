"""Matchers, one adapter per file, and the network that compares whole photographs."""
