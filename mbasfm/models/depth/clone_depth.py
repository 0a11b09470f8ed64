"""Base of depth networks whose code is an installed package or a clone."""

from typing import Any, ClassVar

from mbasfm.models.clones import Code
from mbasfm.models.depth.network_depth import NetworkDepth


class ForeignDepth(NetworkDepth):
    """A depth network whose code comes from elsewhere."""

    code: ClassVar[Code]

    @classmethod
    def missing_code(cls) -> str:
        """Package to install or repository to clone; empty if the code is there."""
        return cls.code.missing()

    def _import(self, module: str = "") -> Any:
        return self.code.load(self.name, module)
