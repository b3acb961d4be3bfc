"""The wheel holds the whole package and nothing else, and `./dev` explains itself on a machine that lacks things."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_is_whole(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("dray-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        text = {name.split("/")[-1]: archive.read(name).decode() for name in names if ".dist-info/" in name}
    assert "dray/py.typed" in names
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "dray").rglob("*.py")}
    assert sources <= names
    built = ROOT / "src" / "dray" / "hub" / "pages" / "built"
    if built.exists():
        pages = {str(path.relative_to(ROOT / "src")) for path in built.rglob("*") if path.is_file()}
        assert pages <= names
        assert "dray/hub/pages/built/index.html" in pages
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dray"}
    assert "dray = dray.cli.main:main" in text["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in text["METADATA"]
    assert "Apache License" in text["LICENSE"]


def test_the_pinned_list_answers_the_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements" / "dev.txt").read_text()
    pinned: dict[str, list[Requirement]] = {}
    # A package's entry is its pin and the hashes of its files, joined by backslashes.
    for entry in text.replace("\\\n", " ").splitlines():
        name_and_version, *hashes = entry.split(" --hash=")
        assert hashes, f"{name_and_version} has no hash"
        pin = Requirement(name_and_version)
        pinned.setdefault(pin.name, []).append(pin)
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        declared = Requirement(line)
        pins = pinned.get(declared.name.lower(), [])
        assert pins, f"{line} is not in requirements/dev.txt: ./dev lock"
        for pin in pins:
            (exact,) = pin.specifier
            assert declared.specifier.contains(exact.version), f"{pin} is not {line}: ./dev lock"


def dev(*arguments: str, script: Path = ROOT / "dev", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script, *arguments],
        cwd="/",
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_help_describes_every_verb() -> None:
    verbs = re.findall(r"^  (\w+)\) set_up", (ROOT / "dev").read_text(), flags=re.MULTILINE)
    assert len(verbs) >= 7
    done = dev("help")
    assert done.returncode == 0
    for verb in verbs:
        assert re.search(rf"^  {verb}\b.{{10,}}", done.stdout, flags=re.MULTILINE), verb


def test_an_unknown_verb_is_an_error() -> None:
    done = dev("tset")
    assert done.returncode == 1
    assert "there is no verb 'tset'" in done.stderr


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    for name in (
        "dev",
        "pyproject.toml",
        "tools/environment.py",
        "requirements/uv.txt",
        "requirements/dev.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_an_old_python_is_named(bare_checkout: Path) -> None:
    old = bare_checkout / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = dev("check", script=bare_checkout / "dev", PYTHON=str(old))
    assert done.returncode == 1
    assert f"$PYTHON is {old}, which is no Python >= 3.11" in done.stderr
    assert not (bare_checkout / ".venv").exists()


def test_a_machine_without_python_is_told(bare_checkout: Path) -> None:
    programs = bare_checkout / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "cat"):
        (programs / name).symlink_to(shutil.which(name) or name)
    done = dev("test", script=bare_checkout / "dev", PATH=str(programs), PYTHON="")
    assert done.returncode == 1
    assert "no Python >= 3.11 here" in done.stderr


def test_a_failed_download_is_tried_twice_and_leaves_no_stamp(bare_checkout: Path) -> None:
    # A sound venv is kept as it is; one with this environment's pip is there at once, one of its own takes seconds.
    venv.create(bare_checkout / ".venv", symlinks=True)
    (packages,) = (bare_checkout / ".venv").glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    (bare_checkout / "requirements" / "uv.txt").write_text("uv==0.0.0 --hash=sha256:" + "0" * 64 + "\n")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(bare_checkout)}
    done = dev("check", script=bare_checkout / "dev", PYTHON=sys.executable, **offline)
    assert done.returncode == 1
    assert "installing uv: failed, trying once more" in done.stderr
    assert "installing uv failed (exit code" in done.stderr
    assert not (bare_checkout / ".venv" / ".dray-stamp").exists()
