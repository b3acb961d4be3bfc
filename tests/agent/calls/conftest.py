"""Agents with a hub of the test's own: one for all tests of a module that only run calls, one for each that kills."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are no package that is installed: what they share is found from the root of the project.
_ROOT = str(Path(__file__).parents[3])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from tests.agent.calls.call_hub import CallHub  # noqa: E402 - only found after the line above


@pytest.fixture
def hub() -> Iterator[CallHub]:
    made = CallHub()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[CallHub]:
    """A hub whose agent runs already."""
    made = CallHub()
    try:
        made.start_agent()
        yield made
    finally:
        made.close()
