"""Settings in files and as options: grouped, as of old, and when they are wrong."""

import json
import re
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from mbasfm import cli
from mbasfm.cli import main
from mbasfm.config import GROUPS, PRESETS, Common, Config, LocalizeConfig, grouped
from mbasfm.errors import ConfigError
from mbasfm.io.files import read_config, write_config

DOCUMENT = Path(__file__).parents[1] / "docs" / "settings.md"
FIRST = Config(
    depth='files:a "b" \\c',
    matcher="sift",
    weights="w",
    models_path="m",
    intrinsics="per-folder",
    focal=812.5,
    masks="black",
    max_error_px=2.0,
    samples_per_edge=50,
    seed=3,
    lens="radial",
    init="poses.txt",
    prior_sigma_m=0.5,
    prior_sigma_deg=2.0,
    pairs="pairs.txt",
    min_covisibility=0.2,
    min_confidence=0.1,
    min_depth_confidence=0.3,
    tree="paper",
    objective="paper",
    loss="cauchy",
    stages="coarse",
    solver="adam",
    adam_steps=10,
    max_memory_gb=1.5,
    polish=False,
    tracks_per_frame=20,
    align="up",
)
SECOND = Config(cameras="cameras.txt", priors="exif")
"""Those that exclude others of the first."""
EXAMPLES = (FIRST, SECOND, *PRESETS.values())


def write_flat(path: Path, config: Config) -> None:
    """As files were before there were tables."""
    rows = [f"{name} = {json.dumps(value)}\n" for name, value in asdict(config).items() if value is not None]
    path.write_text("".join(rows))


def options_of(config: Config) -> list[str]:
    """Every setting that is set, as options."""
    options = []
    for name, value in asdict(config).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            options += [f"--{flag}", str(value)]
    return options


def parse(*options: str) -> Config:
    return cli.parse(["sfm", "photos", *options]).settings


def test_the_examples_change_every_setting():
    for field in fields(Config):
        assert any(getattr(example, field.name) != field.default for example in (FIRST, SECOND)), field.name


# ----------------------------------------------------------------------------------------------------------------
# Groups


def test_every_setting_is_in_one_group():
    names = Counter(name for group in GROUPS for name in group.settings)
    assert names == Counter({field.name for kind in (Config, LocalizeConfig) for field in fields(kind)})


def test_the_documentation_lists_every_group_and_its_settings():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (`.+`) \|$", DOCUMENT.read_text(), re.MULTILINE)
    found = [(name, about, tuple(re.findall(r"`(\w+)`", settings))) for name, about, settings in rows]
    groups = [(group.name, group.about.removesuffix(".").lower(), group.settings) for group in GROUPS]
    assert [row for row in found if row[0] in {name for name, _, _ in groups}] == groups


@pytest.mark.parametrize("config", [FIRST, LocalizeConfig(seed=5)])
def test_groups_hold_all_settings_and_none_is_empty(config: Common):
    groups = grouped(config)
    assert {name: value for values in groups.values() for name, value in values.items()} == asdict(config)
    assert all(groups.values())


# ----------------------------------------------------------------------------------------------------------------
# Files


@pytest.mark.parametrize("config", EXAMPLES)
@pytest.mark.parametrize("write", [write_config, write_flat])
def test_what_is_written_is_read(tmp_path, config, write):
    path = tmp_path / "a.toml"
    write(path, config)
    assert read_config(path, Config()) == config


def test_files_have_a_table_per_group(tmp_path):
    path = tmp_path / "a.toml"
    write_config(path, FIRST)
    tables = [line for line in path.read_text().splitlines() if line.startswith("[")]
    assert tables == [f"[{group.name}]" for group in GROUPS]


def test_settings_may_stand_in_tables_and_outside(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("seed = 4\n[cameras]\nfocal = 700\n")
    config = read_config(path, PRESETS["fast"])
    assert (config.seed, config.focal, config.samples_per_edge) == (4, 700.0, 100)
    path.write_text('[cameras]\ncameras = "a.txt"\n')
    assert read_config(path, Config()).cameras == "a.txt"


@pytest.mark.parametrize(
    "content, words",
    [
        ("samples_per_egde = 3", "unknown setting 'samples_per_egde'; did you mean 'samples_per_edge'?"),
        ("[adjustment]\nsamples_per_egde = 3", "unknown setting 'samples_per_egde'; did you mean 'samples_per_edge'?"),
        ("[adjustmnet]\nseed = 3", "unknown table 'adjustmnet'; did you mean 'adjustment'?"),
        ("[qqq]\nseed = 3", "unknown table 'qqq'; known: models, cameras, "),
        ("[models]\nfocal = 700", r"focal is no setting of \[models\]; move it to \[cameras\]"),
        ("[matching]\nmap_neighbours = 3", "unknown setting 'map_neighbours'"),
        ("seed = 3\n[adjustment]\nseed = 3", "seed is set twice"),
        ("[adjustment]\nseed = 1.5", "a whole number"),
        ("[adjustment.seed]\na = 1", "does not fit"),
        ("cameras = 3", "cameras = 3 does not fit"),
        ("[[models]]\ndepth = 'flat'", "unknown setting 'models'"),
    ],
)
def test_wrong_files_say_what_to_do(tmp_path, content, words):
    path = tmp_path / "a.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_config(path, Config())


# ----------------------------------------------------------------------------------------------------------------
# Options


@pytest.mark.parametrize("config", EXAMPLES)
def test_every_setting_is_an_option_of_its_own_name(config):
    assert parse("--output", "scene", *options_of(config)) == config


def test_options_win_over_files_and_files_over_presets(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[adjustment]\nseed = 4\ntracks_per_frame = 7\n")
    config = parse("--output", "scene", "--preset", "fast", "--config", str(path), "--seed", "5")
    assert (config.seed, config.tracks_per_frame, config.samples_per_edge) == (5, 7, 100)
    assert parse("--output", "scene") == Config()  # nothing is left of the command before


@pytest.mark.parametrize("config", EXAMPLES)
@pytest.mark.parametrize("write", [write_config, write_flat])
def test_a_run_resumes_with_its_settings(tmp_path, config, write):
    write(tmp_path / "config.toml", config)
    assert parse("--output", str(tmp_path), "--resume") == config


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of the help without the boxes around them, which depend on the terminal."""
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    return [line.strip(" │╭╮╰╯─|+") for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("command, config", [("sfm", Config()), ("localize", LocalizeConfig())])
def test_the_help_has_every_setting_below_the_heading_of_its_group(command, config, capsys):
    found: dict[str, list[str]] = {}
    heading = ""
    for line in help_of(command, capsys):
        if title := re.fullmatch(r"(\w*) ?options", line):
            heading = title[1]
            assert heading not in found
            found[heading] = []
        elif option := re.match(r"--([a-z][a-z-]+)", line):
            found[heading].append(option[1].replace("-", "_"))
    del found[""]  # options that are no settings
    assert found == {group.name: list(values) for group, values in grouped(config).items()}


@pytest.mark.parametrize(
    "command, words",
    [
        ("sfm", ("kappa: samples of every pair", "Seed of all random choices", "Which pairs to match")),
        ("localize", ("kappa, or the matches", "Seed of all random choices", "One query at a time")),
    ],
)
def test_the_help_explains_settings_in_the_words_of_the_source(command, words, capsys):
    text = " ".join(help_of(command, capsys))
    assert all(" ".join(text.split()).count(word) == 1 for word in words)


def test_a_misspelt_option_gets_a_suggestion(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["sfm", "photos", "--output", "scene", "--max-eror-px", "2"])
    assert exit_info.value.code == 2
    assert "--max-error-px" in capsys.readouterr().err
