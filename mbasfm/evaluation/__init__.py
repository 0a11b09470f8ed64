"""Errors of poses, and published protocols."""
