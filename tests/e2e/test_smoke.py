from __future__ import annotations

from tests.e2e.cluster import Cluster


def test_smoke(site: Cluster) -> None:
    done = site.dray("run", "--", "sh", "-c", "echo hi; exit 3")
    assert (done.code, done.out) == (3, "hi\n")
