"""Subcommands of ``mba``: frozen options, and ``run``, which returns the exit code."""
