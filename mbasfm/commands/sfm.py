"""`mba sfm`: camera poses of photographs."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from mbasfm.config import Config, Preset
from mbasfm.errors import ConfigError
from mbasfm.extend import extend
from mbasfm.io.files import write_config
from mbasfm.reconstruct import reconstruct, solve
from mbasfm.runtime import parallel
from mbasfm.runtime.progress import Progress
from mbasfm.scene.reconstruction import Reconstruction

EXIT_NOTHING = 3
"""No photograph could be placed."""
CONFIG_NAME = "config.toml"


@dataclass(frozen=True)
class Sfm:
    """Camera poses of a folder of photographs, as a COLMAP model and what trainers and viewers want beside it."""

    photos: tyro.conf.Positional[Path]
    """Folder (searched through), text file with one path per line, or video."""
    output: Path
    """Folder for models, images, depth and all other files of the scene; made if it does not exist."""
    preset: Preset = "default"
    """Where settings start from: fewer samples and tracks, or more."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    resume: bool = False
    """Take the settings of the run that OUTPUT holds and go on where it stopped."""
    cache: Path | None = None
    """Where features, depth and matches are kept; by default inside OUTPUT."""
    add: Path | None = None
    """Older scene that stays as it is; the photographs are localized in it, and OUTPUT holds both."""
    quiet: bool = False
    """Print errors only."""
    verbose: bool = False
    """Print all facts of every stage."""
    json: bool = False
    """Print the summary as JSON on standard output."""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)

    def run(self) -> int:
        """Reconstruct, write, and say what came out; returns the exit code.

        Started by torchrun, all processes solve and the first one goes on to write.
        """
        parallel.start()
        if not parallel.is_main():
            if self.add is None:
                solve(self.photos, self.output, self.settings, self.cache, Progress())
            parallel.finish()
            return 0
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            write_config(self.output / CONFIG_NAME, self.settings)
        except OSError as error:
            raise ConfigError(f"{self.output}: cannot be written ({error}); choose another --output") from error
        console = Console(stderr=True, quiet=self.quiet)
        progress = Progress(console, self.verbose)
        if self.add is None:
            result = reconstruct(self.photos, self.output, self.settings, self.cache, progress)
        else:
            result = extend(self.add, self.photos, self.output, self.settings, self.cache, progress)
        parallel.finish()
        _summarise(result, self.output, console)
        if self.json:
            print(json.dumps(_summary(result, self.output), indent=1))
        return 0 if bool(result.registered.any()) else EXIT_NOTHING


def _summary(result: Reconstruction, output: Path) -> dict[str, Any]:
    rows = result.report.images
    return {
        "output": str(output),
        "photographs": len(rows),
        "registered": int(result.registered.sum()),
        "components": [model.num_images() for model in result.models],
        "missing": {row.name: str(row.reason) for row in rows if not row.registered},
        "seconds": sum(stage.seconds for stage in result.report.stages),
    }


def _summarise(result: Reconstruction, output: Path, console: Console) -> None:
    for row in result.report.images:
        if not row.registered:
            console.print(f"not registered: {row.name}: {row.reason}", highlight=False)
    registered, total = int(result.registered.sum()), len(result.registered)
    console.print(f"{registered} of {total} photographs registered in {len(result.models)} component(s)")
    for number, model in enumerate(result.models):
        console.print(
            f"  {output / 'sparse' / str(number)}: {model.num_images()} images, {model.num_points3D()} points,"
            f" mean error {model.compute_mean_reprojection_error():.2f} px",
            highlight=False,
        )
    console.print(f"look at {output / 'report.html'} or run: mba view {output}", highlight=False, soft_wrap=True)
