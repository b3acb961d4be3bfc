"""A whole cluster for tests of functions: hub, agent, runners; shared by all tests that leave it as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import dray
from dray.client.faces.private_hub import PrivateHub


@pytest.fixture(scope="session")
def cluster() -> Iterator[PrivateHub]:
    """Hub and worker of their own, four slots and four cores wide."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("DRAY_")]:
            patch.delenv(name)
        patch.setenv("DRAY_WORKER_SLOTS", "4")
        patch.setenv("DRAY_WORKER_CPUS", "4")
        started = PrivateHub()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def hub(cluster: PrivateHub) -> Iterator[dray.Hub]:
    with dray.connect(home=cluster.home) as connected:
        yield connected
