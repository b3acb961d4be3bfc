"""Real file systems that are small, full or read-only; they need root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own at `folder`; skips the test where none can be had."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: the stores of a failed test may still hold their files.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, mode: str) -> None:
    """Make a mounted file system `ro` or `rw`."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def fill_up(path: Path) -> None:
    """Take every block that is left on the disk."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
