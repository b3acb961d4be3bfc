"""Whole programs: functions of `__main__`, forks, other interpreters, edited modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dray
from dray.client.faces.private_hub import PrivateHub
from dray.functions import envelope
from dray.functions.modules import find_version

LIMIT_S = 60.0


def run_program(cluster: PrivateHub, folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text)
    env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
    ran = subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env={**env, "DRAY_HOME": str(cluster.home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


MAIN = """
import dray

SCALE = 2

class Point:
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return type(other) is Point and self.x == other.x

def scale(point):
    return Point(point.x * SCALE)

if __name__ == "__main__":
    with dray.connect() as hub:
        assert hub.submit(scale, Point(4)).result(60) == Point(8)
        SCALE = 3
        assert hub.submit(scale, Point(4)).result(60) == Point(12)
        print("fine")
"""
FORKED = """
import dray, os, warnings
warnings.simplefilter("ignore")

def double(x): return 2 * x

hub = dray.connect()
assert hub.submit(double, 1).result(60) == 2
pid = os.fork()
if pid == 0:
    os._exit(0 if hub.submit(double, 4).result(60) == 8 and list(hub.map(double, [1, 2])) == [2, 4] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert hub.submit(double, 5).result(60) == 10
print("fine")
"""
USES_MODULE = """
import dray, helper
with dray.connect() as hub:
    print(hub.submit(helper.answer).result(60))
"""


def test_functions_and_classes_of_the_program_itself(cluster: PrivateHub, tmp_path: Path) -> None:
    assert run_program(cluster, tmp_path, MAIN) == "fine"


def test_a_forked_child_goes_on_by_itself(cluster: PrivateHub, tmp_path: Path) -> None:
    assert run_program(cluster, tmp_path, FORKED) == "fine"


def test_an_edited_module_is_run_as_it_is_now(cluster: PrivateHub, tmp_path: Path) -> None:
    for word in ("first", "second one"):
        (tmp_path / "helper.py").write_text(f"def answer():\n    return {word!r}\n")
        assert run_program(cluster, tmp_path, USES_MODULE) == word


def test_a_client_of_another_python_is_told_before_anything_runs(
    hub: dray.Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    monkeypatch.setattr(envelope, "PYTHON", "3.9")
    future = hub.submit(mark.touch)
    with pytest.raises(dray.CallFailed, match=r"sent by Python 3\.9") as caught:
        future.result(LIMIT_S)
    assert caught.value.exit_class == "environment"
    assert not mark.exists()


def test_other_packages_are_told_before_anything_runs(hub: dray.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        envelope, "find_version", lambda package: "0.0.1" if package == "numpy" else find_version(package)
    )

    def use_cloudpickle() -> str:
        import cloudpickle

        return str(cloudpickle.__version__)

    import numpy as np

    def use_numpy() -> float:
        return float(np.sum([1.0]))

    assert hub.submit(use_cloudpickle).result(LIMIT_S)
    with pytest.raises(dray.CallFailed, match=r"numpy is .* and the caller has 0\.0\.1"):
        hub.submit(use_numpy).result(LIMIT_S)
