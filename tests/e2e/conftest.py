"""Clusters for end-to-end tests: one per module where tests can share it, a fresh one where they cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

# Tests are no package that is installed: what they share is found from the root of the project.
_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from tests import warm  # noqa: E402 - only found after the line above
from tests.e2e.cluster import CALM, Cluster  # noqa: E402 - as above


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters without any process; all of them are swept away at the end."""
    made: list[Cluster] = []

    def make(timers: Mapping[str, str] = CALM) -> Cluster:
        made.append(Cluster(timers))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A hub and one agent with four slots, shared by the tests of a module, which may say how they start: `POPEN`."""
    cluster = Cluster(popen=getattr(request.module, "POPEN", warm.Popen))
    try:
        cluster.start_hub()
        cluster.start_agent("w1")
        yield cluster
    finally:
        cluster.close()
