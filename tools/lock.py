"""Compile the hashed requirement lists from pyproject.toml: one for uv itself, one for everything else.

The lists hold names, versions and hashes of every platform's files and no address, so they serve any mirror.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
