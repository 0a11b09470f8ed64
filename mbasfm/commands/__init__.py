"""Subcommands of ``mba``: frozen options each, with a ``run`` that returns the exit code."""
