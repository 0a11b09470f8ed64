"""What depth networks share whose code is an installed package or a clone."""

from typing import Any, ClassVar

from mbasfm.models.clones import Code
from mbasfm.models.depth.network_depth import NetworkDepth


class ForeignDepth(NetworkDepth):
    """What such networks share."""

    code: ClassVar[Code]

    @classmethod
    def missing_code(cls) -> str:
        """The package to install or the repository to clone."""
        return cls.code.missing()

    def _import(self, module: str = "") -> Any:
        return self.code.load(self.name, module)
