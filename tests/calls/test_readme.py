"""The Python lines that the README shows, run as they stand on a hub with a worker that has a card."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.testing import RunningHub, running_hub

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """
import os

def train(epochs): return {"epochs": epochs, "cards": os.environ["CUDA_VISIBLE_DEVICES"]}
def evaluate(checkpoint): return len(checkpoint)
def impossible(): raise AssertionError("it ran")
checkpoints = ["a", "bb", "ccc"]
"""
CHECKS = """
assert isinstance(job, __import__("concurrent.futures").futures.Future)
assert job.result()["epochs"] == 3, job.result()
assert job.result()["cards"] in ("0", "GPU-0"), job.result()
assert job.state == dray.JobState.SUCCEEDED
assert list(hub.map(evaluate, checkpoints, gpus=1)) == [1, 2, 3]
print("all of it ran")
"""


@pytest.fixture
def carded(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "h") as running:
        env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
        with (tmp_path / "agent.log").open("wb") as log:
            agent = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("carded_agent.py")),
                    "--home",
                    str(running.home),
                ],
                env={**env, "DRAY_WORKER_SLOTS": "4"},
                stdout=log,
                stderr=log,
            )
        try:
            yield running
        finally:
            agent.terminate()
            agent.wait()


def read_block() -> str:
    text = (ROOT / "README.md").read_text()
    found = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "dray.connect()" in block
    ]
    assert len(found) == 1
    return str(found[0])


def test_the_python_lines_of_the_readme_run_as_written(carded: RunningHub, tmp_path: Path) -> None:
    script = tmp_path / "lines.py"
    script.write_text(PRELUDE + read_block() + CHECKS)
    env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**env, "DRAY_HOME": str(carded.home)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "all of it ran"
