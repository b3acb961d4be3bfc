"""Lets property tests find the harness of the core's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests are no package that is installed: what they share is found from the root of the project.
_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from tests.core.harness import Cluster  # noqa: E402 - only found after the line above


@pytest.fixture
def cluster() -> Cluster:
    """An empty cluster, past the grace after a hub's start."""
    return Cluster()
