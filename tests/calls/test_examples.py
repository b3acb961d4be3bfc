"""The examples run as they stand, and show what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_two_machines import need_namespaces
from tests.programs import path_with

from dray.client.faces.private_hub import PrivateHub

ROOT = Path(__file__).resolve().parents[2]
SHOWN = {
    "parameter_sweep": ["9 settings in job", "best: rate 0.001, width 64, loss 0.000"],
    "campaign": [
        "best loss: 0.0",
        "while it is paused: workload campaign-example is paused",
        "succeeded: 5 tasks, ok",
    ],
    "resource_serialisation": ["4 calls of 2 CPUs each, at most 2 at once"],
    "scheduling_timeout": [
        "waits: cannot ever start",
        "ended: unschedulable",
        "result() raises: impossible()",
    ],
    "joblib_run": ["2262 primes below 20000"],
    "preempted_training": [
        "urgent: MAKE ROOM",
        "training: succeeded",
        "in 2 attempts: preempted, succeeded",
        "receipt: priority",
    ],
    "gang_service": [
        "1 of 1 groups of 2 nodes ready, on 2 workers",
        "callers are sent to ['",
        "rank 1 was killed: both of 2 started again, one end counts once: [1, 1]",
    ],
    "update_under_load": [
        "revision 2 serves",
        "revision 2 serves again: revision 3 was rolled back: replica 4 ",
        "0 of ",
    ],
    "jupyter_session": [
        "opened http://notebook-",
        "a page of JupyterLab came",
        "cell: computed on the worker: 5050",
        "cell: 42",
        "ended: killed",
    ],
    "closed_worker": [
        "web      far     10.213.78.2  http=2",
        "by the forward: hello from far",
        "web: stopped",
    ],
}


# Started beside a hub that it is told of: tests/contracts/test_grpc_executors.py.
BESIDE = {"foreign_executor"}


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*SHOWN, *BESIDE}
    listed = (ROOT / "examples" / "README.md").read_text()
    assert all(f"{name}.py" in listed for name in {*SHOWN, *BESIDE})


@pytest.mark.parametrize("name", SHOWN)
def test_an_example(name: str, cluster: PrivateHub) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
    if name == "jupyter_session":
        env["PATH"] = path_with("jupyter-lab", "jupyterlab")
    elif name == "closed_worker":
        need_namespaces()
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env={**env, "DRAY_HOME": str(cluster.home)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    for begins in SHOWN[name]:
        assert any(line.startswith(begins) for line in lines), ran.stdout
    if name == "update_under_load":
        asked = next(int(line.split()[2]) for line in lines if line.startswith("0 of "))
        assert asked >= 2000, ran.stdout
    if name == "closed_worker":
        assert "from the hub's machine: no connection" in ran.stdout, "nobody dials that machine"
