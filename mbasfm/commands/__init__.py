"""The subcommands of ``mba``: a frozen dataclass of options each, whose ``run`` returns the exit code."""
