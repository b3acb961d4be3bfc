"""`./dev demo` keeps its word: it exits with 0, ends by itself, and leaves no process and no folder behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(170)
def test_the_demo_comes_out_as_announced() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo.py")],
        env={**os.environ, "CI": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Everything came out as announced" in done.stdout
    assert "\x1b" not in done.stdout, "plain text where nobody watches"
    folder = re.search(r"/\S+/dray-demo-\w+", done.stdout)
    assert folder, "doctor names the home"
    assert not Path(folder[0]).exists()
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if folder[0] in " ".join(process.info["cmdline"] or ())
    ]
    assert not left
