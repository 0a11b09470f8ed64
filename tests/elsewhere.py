"""Runs the tests as other machines would: other vector units, other kernels of BLAS, other numbers of threads.

Prints one line per machine, and the comparisons that came within a factor of ten of a bound on rounding.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def machines() -> dict[str, dict[str, str]]:
    """Settings by name; those that this processor can imitate."""
    found = {f"ATEN_CPU_CAPABILITY={name}": {"ATEN_CPU_CAPABILITY": name} for name in ("default", "avx2")}
    cores = ["Haswell", "Sandybridge"]
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        cores.append("SkylakeX")
    found |= {f"OPENBLAS_CORETYPE={name}": {"OPENBLAS_CORETYPE": name} for name in cores}
    return found | {f"{count} threads": {"OMP_NUM_THREADS": str(count)} for count in (1, 2, 4)}


def run(settings: dict[str, str], arguments: list[str]) -> tuple[int, str, dict[str, list[float]]]:
    """Exit code, last line, and tight comparisons by place."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", "-q", *arguments]
        done = subprocess.run(
            command, env=os.environ | settings | {"MBA_MARGINS": folder}, stdout=subprocess.PIPE, text=True, check=False
        )
        tight: dict[str, list[float]] = {}
        for path in Path(folder).glob("*.json"):
            for place, worst in json.loads(path.read_text()).items():
                tight[place] = max(tight.get(place, worst), worst)
    for line in re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE):
        print(f"  {line}", flush=True)
    return done.returncode, done.stdout.strip().splitlines()[-1], tight


def main() -> int:
    """All machines, one after the other; further arguments are pytest's."""
    codes, tight = [], {}
    for name, settings in machines().items():
        begin = time.monotonic()
        code, last, near = run(settings, sys.argv[1:])
        codes.append(code)
        tight |= {place: max(tight.get(place, worst), worst) for place, worst in near.items()}
        print(
            f"{name:<28} {'passed' if code == 0 else 'FAILED'}  {last} ({time.monotonic() - begin:.0f} s)", flush=True
        )
    for place, (share, error, bound) in sorted(tight.items(), key=lambda item: -item[1][0]):
        print(f"tight: {place}: {error:.2g} of {bound:.2g} ({share:.0%})")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
