"""A whole cluster for tests of functions: hub, agent, runners; shared by all tests that leave it as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests import sites
from tests.e2e.cluster import Cluster

import dray
from dray.client.faces.private_hub import PrivateHub
from dray.config import PAIR_SERVICE_SLOTS


class Site(Cluster):
    """The same with a store of the site's: a private hub, which is there for a while, never has one."""

    def stop(self) -> None:
        self.close()


def _start_site() -> Site:
    site = Site()
    del site.env["DRAY_WORKER_RUNNERS"]
    site.env |= {"DRAY_WORKER_CPUS": "4", "DRAY_WORKER_SERVICE_SLOTS": str(PAIR_SERVICE_SLOTS)}
    site.start_hub()
    site.start_agent("w1", 4, near=True)
    return site


@pytest.fixture(scope="session")
def cluster() -> Iterator[PrivateHub | Site]:
    """Hub and worker of their own, four slots and four cores wide."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("DRAY_")]:
            patch.delenv(name)
        patch.setenv("DRAY_WORKER_SLOTS", "4")
        patch.setenv("DRAY_WORKER_CPUS", "4")
        started = PrivateHub() if sites.current == sites.HOME else _start_site()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def hub(cluster: PrivateHub | Site) -> Iterator[dray.Hub]:
    where = cluster.url if isinstance(cluster, Site) and sites.current == sites.GATEWAY else ""
    with dray.connect(where, home=cluster.home) as connected:
        yield connected
