"""`./dev demo` keeps its word: it exits with 0, ends by itself, and leaves no process and no folder behind."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil
import pytest
from tests import warm

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(170)
def test_the_demo_comes_out_as_announced() -> None:
    """Forked with all that it starts; where people type first, in the README and the tutorial, nothing is."""
    command = [sys.executable, "-m", "tools.demo"]
    done = warm.run(command, 140, cwd=ROOT, env={**os.environ, "CI": "true"})
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    assert "Everything came out as announced" in said
    assert "\x1b" not in said, "plain text where nobody watches"
    folder = re.search(r"/\S+/dray-demo-\w+", said)
    assert folder, "doctor names the home"
    assert not Path(folder[0]).exists()
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if folder[0] in " ".join(process.info["cmdline"] or ())
    ]
    assert not left
