"""`dray ps` must feel instant: what it imports is watched, not how long it takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = (
    "numpy",
    "uvicorn",
    "msgspec",
    "rich",
    "yaml",
    "psutil",
    "asyncio",
    "cryptography",
    "dray.hub",
)


def imported_by(*arguments: str, home: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dray.cli.main", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "DRAY_HOME": home},
        check=False,
        timeout=60,
    )
    return {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


@pytest.mark.parametrize("arguments", [["ps"], ["show", "a"], ["--help"], ["ps", "--help"], ["worker", "ls"]])
def test_one_shots_import_little(hub, clean_environment, arguments):
    hub.set("a", name="x")
    hub.canned["GET", "/jobs"] = (200, {"jobs": [hub.jobs["a"]], "next_cursor": None})
    hub.canned["GET", "/workers"] = (200, {"workers": []})
    found = imported_by(*arguments, home=str(clean_environment))
    assert "click" in found
    heavy = {name for name in found if name.startswith(HEAVY)}
    assert not heavy


def test_help_asks_no_hub_and_needs_no_http(clean_environment):
    assert "http.client" not in imported_by("--help", home=str(clean_environment))


def test_submit_of_a_command_stays_light_too(hub, clean_environment):
    found = imported_by("submit", "--", "true", home=str(clean_environment))
    assert len(hub.asked("POST", "/jobs")) == 1
    assert not {name for name in found if name.startswith(HEAVY)}
