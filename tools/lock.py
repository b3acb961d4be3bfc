"""Compile the hashed requirement lists: one for uv itself, one for all that pyproject.toml names, one for each program
that a test starts and that nothing else needs.

The lists hold names, versions and hashes of every platform's files and no address, so they serve any mirror.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Started by templates that come with dray; a test installs each apart, when it is needed (`tests/programs.py`).
PROGRAMS = ("jupyterlab", "tensorboard")
COMPILE = (
    "uv",
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
)


def compile_list(target: str, *inputs: str, text: str | None = None, options: tuple[str, ...] = ()) -> None:
    """Versions already in the list stay unless `--upgrade` is among the options."""
    command = [*COMPILE, *options, *inputs, "--output-file", f"requirements/{target}"]
    subprocess.run(command, cwd=ROOT, input=text, text=True, check=True)


def main() -> int:
    options = tuple(sys.argv[1:])
    if not set(options) <= {"--upgrade"}:
        print(f"./dev lock knows --upgrade alone, not {' '.join(options)}", file=sys.stderr)
        return 2
    compile_list("uv.txt", "-", text="uv\n", options=options)
    compile_list("dev.txt", "--extra", "dev", "pyproject.toml", options=options)
    for program in PROGRAMS:
        oldest = ("--python-version", "3.11")
        compile_list(f"{program}.txt", "-", text=f"{program}\n", options=(*oldest, *options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
