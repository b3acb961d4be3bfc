"""Places for files, opened again and again as by one hub after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dray.hub.access.tokens import write_private
from dray.hub.files.base import Files
from dray.hub.files.local import LocalFiles


@pytest.fixture
def open_local(tmp_path: Path) -> Callable[[], Files]:
    return lambda: LocalFiles(tmp_path, write_private)


@pytest.fixture(params=["local"])
def open_files(request: pytest.FixtureRequest) -> Callable[[], Files]:
    """Opens the same place again at each call, as the next hub that leads there does."""
    opener: Callable[[], Files] = request.getfixturevalue(f"open_{request.param}")
    return opener
