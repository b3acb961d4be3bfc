"""Programs of others that tests start: each in a folder of its own below `.venv`, installed from a hashed list when
it is first asked for. Where packages cannot be had, what needs them is skipped and says so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INSTALL_S = 90


def path_with(program: str, package: str) -> str:
    """A PATH on which a program is; a skip with the installer's own words where it cannot be had."""
    found = shutil.which(program) or install(program, package)
    return f"{Path(found).parent}:{os.environ['PATH']}"


def install(program: str, package: str) -> str:
    """Where a program is after its package was installed; several tests may ask at once."""
    wanted = ROOT / "requirements" / f"{package}.txt"
    folder = ROOT / ".venv" / "programs" / package
    stamp = folder / "stamp"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_bytes() != wanted.read_bytes():
            fill(folder, wanted)
            stamp.write_bytes(wanted.read_bytes())
    finally:
        os.close(lock)
    return str(folder / "bin" / program)


def fill(folder: Path, wanted: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder)
    run(uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", wanted)


def run(*command: str | Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as fault:
        pytest.skip(f"could not be installed: {fault}")
    if done.returncode:
        pytest.skip(f"could not be installed: {done.stderr.strip()[-500:]}")
