"""The side process ends quietly with its hub, wherever the hub was killed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\x09half"])
def test_a_hub_that_goes_amid_a_scene_leaves_no_trace(said: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dray.hub.answers.estimator"],
        input=said,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
