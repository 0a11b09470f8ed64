"""What can go wrong for a user, said so that the next step is clear.

Wrong input raises one of these. A hard scene does not: its frames are marked and explained in the result.
"""


class MBAError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(MBAError):
    """A setting is unknown, of the wrong type or out of range."""


class InputError(MBAError):
    """Data handed in by the user is unreadable, empty or contradicts itself."""


class ModelNotFoundError(MBAError):
    """No installed package offers a model of that name."""


class DegenerateError(MBAError):
    """The mathematics cannot go on: no edge, no unknown, no residual that could move anything."""


class MissingExtraError(MBAError):
    """An optional dependency is needed; the message says which extra to install."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an optional dependency: pip install 'mbasfm[{extra}]'")


class WorkerLostError(MBAError):
    """Another process of the job died."""
