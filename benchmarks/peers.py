"""Other schedulers, each in an environment of its own under the user's cache, made once.

Where one cannot be installed the reason is told and its ratio stays open: a missing peer must not look like a success.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL_S = 600.0


@functools.cache
def find_peer(name: str, *requirements: str) -> Path | str:
    """The interpreter of an environment with a peer in it, made when it is not there; else the reason."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = cache / "dray-benchmarks" / requirements[0].replace("==", "-")
    python = home / "bin" / "python"
    if (home / "complete").exists():
        return python
    shutil.rmtree(home, ignore_errors=True)
    try:
        subprocess.run(
            [sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, timeout=INSTALL_S
        )
        install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S)
    except (subprocess.SubprocessError, OSError) as fault:
        said = getattr(fault, "stderr", None) or b""
        return f"{name} cannot be installed: {said.decode(errors='replace').strip()[-200:] or fault}"
    (home / "complete").touch()
    return python
