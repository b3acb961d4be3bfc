"""A client of another Python than the worker's: told before anything runs, and served where its venv is named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray
from dray.client.faces.private_hub import PrivateHub

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
# What the client loads beside itself: the second is compiled, so that this environment's own does not do.
NEEDED = ("cloudpickle", "msgspec")


def list_interpreters() -> Iterator[str]:
    for minor in (14, 13, 12, 11):
        yield from filter(None, [shutil.which(f"python3.{minor}")])
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, sorted(kept.glob("3.*/bin/python3"), reverse=True))


def find_other() -> tuple[str, str]:
    """An interpreter of another minor version that dray supports, and that version; empty where there is none."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for path in list_interpreters():
        words = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"]
        asked = subprocess.run(words, capture_output=True, text=True, check=False)
        version, _, found = asked.stdout.strip().partition(" ")
        # A name on the path may be a shim that stands for nothing.
        if asked.returncode == 0 and version != here and int(version.partition(".")[2]) >= 11:
            return found, version
    return "", ""


def pinned(packages: tuple[str, ...]) -> str:
    """The lines of the pinned list that name these packages, with their digests."""
    listed = (ROOT / "requirements" / "dev.txt").read_text()
    found = [re.search(rf"^{name}==(?:.*\\\n)*.*\n", listed, re.MULTILINE) for name in packages]
    return "".join(one.group() for one in found if one is not None)


class OtherPython:
    """Another interpreter that can be a client."""

    def __init__(self, python: str, version: str, folder: Path) -> None:
        self.python, self.version = python, version
        self._path = os.pathsep.join((str(ROOT / "src"), str(folder)))

    def run(self, home: Path, text: str, *words: str) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "PYTHON"))}
        ran = subprocess.run(
            [self.python, "-c", text, *words],
            env={**env, "DRAY_HOME": str(home), "PYTHONPATH": self._path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> OtherPython:
    python, version = find_other()
    if not python:
        pytest.skip("there is no Python of another minor version here, 3.11 or later")
    folder = tmp_path_factory.mktemp("other")
    (folder / "needed.txt").write_text(pinned(NEEDED))
    uv = Path(sys.executable).parent / "uv"
    install = [
        str(uv),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
    ]
    where = ["--python", python, "--target", str(folder / "packages"), "-r", str(folder / "needed.txt")]
    done = subprocess.run([*install, *where], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{', '.join(NEEDED)} cannot be had for Python {version}: {done.stderr[-300:]}")
    return OtherPython(python, version, folder / "packages")


TOLD = """
import dray, pathlib, sys
with dray.connect() as hub:
    try:
        hub.submit(pathlib.Path(sys.argv[1]).touch).result(60)
    except dray.CallFailed as fault:
        print(fault.exit_class, fault)
    try:
        list(hub.map(lambda x: x, [1]))
    except dray.CallFailed as fault:
        print(fault.exit_class)
"""
SERVED = """
import dray, sys

def tell(*seen):
    import sys
    return [*seen, "%d.%d" % sys.version_info[:2]]

with dray.connect() as hub:
    print(hub.job(sys.argv[1]).result(60), hub.submit(["true"]).wait(60).state.value)
    print(hub.submit(tell, {"a": 1}, env={"VIRTUAL_ENV": sys.argv[2]}).result(60))
"""


def test_it_is_told_before_anything_runs(cluster: PrivateHub, other: OtherPython, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    first, second = other.run(cluster.home, TOLD, str(mark)).splitlines()
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert first.startswith("environment ")
    assert f"was sent by Python {other.version} and the worker's is {here}" in first
    assert second == "environment"
    assert not mark.exists()


def test_it_reads_results_runs_commands_and_is_served_by_its_own_venv(
    cluster: PrivateHub, hub: dray.Hub, other: OtherPython, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([other.python, "-m", "venv", "--without-pip", str(venv)], check=True)
    made = hub.submit(sorted, [3, 1, 2])
    assert made.result(LIMIT_S) == [1, 2, 3]
    first, second = other.run(cluster.home, SERVED, made.id, str(venv)).splitlines()
    assert first == "[1, 2, 3] succeeded"
    assert second == f"[{{'a': 1}}, '{other.version}']"
