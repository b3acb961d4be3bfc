"""The side process ends quietly with its hub, wherever that was killed, and outlives what goes wrong in a question."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dray.hub.aside.frames import FAULT, LENGTH, frame

PROGRAM = [sys.executable, "-m", "dray.hub.aside.program"]


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\x09half"])
def test_a_hub_that_goes_amid_a_scene_leaves_no_trace(said: bytes) -> None:
    done = subprocess.run(PROGRAM, input=said, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_goes_wrong_in_a_question_is_its_answer() -> None:
    asked = frame(b"foresee") + frame(b"no scene") + frame(b"") + frame(b"unheard of") + frame(b"")
    done = subprocess.run(PROGRAM, input=asked, capture_output=True, timeout=60, check=True)
    answers, left = [], done.stdout
    while left:
        length = LENGTH.unpack(left[: LENGTH.size])[0]
        answers.append(left[LENGTH.size : LENGTH.size + length])
        left = left[LENGTH.size + length :]
    assert [one[:1] for one in answers] == [FAULT, FAULT]
    assert b"unheard of" in answers[1]
