"""The fixture: `pytest_plugins = ["dray.testing.pytest_plugin"]` in the topmost conftest.py, or in a test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.testing.hub_process import RunningHub, running_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    """A hub of this test alone."""
    with running_hub(tmp_path / "hub") as running:
        yield running
