"""A supervisor that is killed while it starts says nothing: the agent starts another instead of giving up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dray.agent.supervisor.client import SupervisorClient, SupervisorError

DIES = (
    '#!/bin/sh\necho >> {tries}\n[ $(wc -l < {tries}) -gt {times} ] && exec {python} "$@"\n{words}\nexit 1\n'
)


def make_python(tmp_path: Path, times: int, words: str = "") -> tuple[str, Path]:
    """An interpreter that ends so many times before it works."""
    script, tries = tmp_path / "python", tmp_path / "tries"
    script.write_text(DIES.format(tries=tries, times=times, python=sys.executable, words=words))
    script.chmod(0o700)
    return str(script), tries


async def test_a_start_that_was_killed_is_tried_again(tmp_path, make_rig):
    rig = make_rig()
    python, tries = make_python(tmp_path, times=2)
    client = await SupervisorClient.open(rig.home, python=python)
    await client.close()
    assert len(tries.read_text().splitlines()) == 3
    assert (await rig.open())["attempts"] == []


async def test_a_start_that_says_why_it_failed_is_not(tmp_path, make_rig):
    python, tries = make_python(tmp_path, times=2, words="echo no room >&2")
    with pytest.raises(SupervisorError, match="no room"):
        await SupervisorClient.open(make_rig().home, python=python)
    assert len(tries.read_text().splitlines()) == 1


async def test_starts_that_are_killed_for_ever_end(tmp_path, make_rig):
    python, _ = make_python(tmp_path, times=10**6)
    with pytest.raises(SupervisorError, match="ended with code 1 at its start"):
        await SupervisorClient.open(make_rig().home, python=python, timeout_s=0.2)
