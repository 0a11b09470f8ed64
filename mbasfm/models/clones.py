"""Code of networks from outside this package and transformers: an installed package, or a clone."""

import importlib
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from mbasfm.errors import InputError
from mbasfm.models.weights import clone_command, find_clone


@dataclass(frozen=True)
class Code:
    """Source of a network's code."""

    repository: str
    """Repository on GitHub."""
    package: str = ""
    """Package on PyPI, if there is one."""
    modules: tuple[str, ...] = ()
    """Modules of the clone or package; the first one found is used."""
    inside: str = ""
    """Folder of the clone that holds the modules."""
    clone_options: str = ""

    def get_command(self) -> str:
        """Command that gets the code."""
        return f"pip install {self.package}" if self.package else clone_command(self.repository, self.clone_options)

    def find_module(self) -> str:
        """First module found in the clone or installed, not imported yet; empty if none is."""
        clone = find_clone(self.repository)
        for name in self.modules:
            top = name.partition(".")[0]
            if (clone is not None and (clone / self.inside / top).is_dir()) or find_spec(top):
                return name
        return ""

    def enter_clone(self) -> None:
        """Put the clone's modules on the path, before installed ones."""
        clone = find_clone(self.repository)
        if clone is not None and (place := str(clone / self.inside)) not in sys.path:
            sys.path.insert(0, place)

    def missing(self) -> str:
        """Command that gets the code; empty if it is there."""
        return "" if self.find_module() else self.get_command()

    def load(self, network: str, module: str = "") -> Any:
        """Import a module, by default the first that is there; raise InputError if that fails."""
        name = module or self.find_module()
        self.enter_clone()
        try:
            return importlib.import_module(name)
        except Exception as error:  # it is others' code: whatever it needs and does not find
            where = find_clone(self.repository) or f"the module {name}"
            raise InputError(
                f"{network}: {where} cannot be imported ({type(error).__name__}: {error}); install what it asks for"
            ) from error
