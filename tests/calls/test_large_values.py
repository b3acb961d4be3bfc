"""Large values through a whole cluster: as files where client and worker share the hub's home, over HTTP elsewhere."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dray
from dray.client.faces.private_hub import PrivateHub
from dray.client.reach.discovery import find_target, settle_config
from dray.errors import TooLarge

LIMIT_S = 60.0
WIDE = 100_000


def sent_bytes(cluster: PrivateHub) -> float:
    """How much has come to the hub over HTTP."""
    target = find_target(settle_config(cluster.home))
    request = urllib.request.Request(f"{target.url}/metrics")  # noqa: S310 - a hub of this test
    request.add_header("Authorization", f"Bearer {target.token}")
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310 - the same
        found = re.search(r"^dray_blob_bytes_total (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def blobs_of(cluster: PrivateHub) -> set[str]:
    return {path.name for path in (cluster.home / "blobs").glob("[0-9a-f][0-9a-f]/*")}


def arrays(first: int, count: int = 6) -> list[np.ndarray]:
    return [np.full(WIDE, first + number, dtype=np.float64) for number in range(count)]


@pytest.fixture
def far(cluster: PrivateHub, tmp_path: Path) -> Iterator[dray.Hub]:
    """A client that knows the hub by its address alone."""
    target = find_target(settle_config(cluster.home))
    with dray.connect(target.url, target.token, home=tmp_path) as connected:
        yield connected


@pytest.mark.home_site("values lie in files")
def test_in_one_home_nothing_is_sent(cluster: PrivateHub, hub: dray.Hub) -> None:
    sent, known = sent_bytes(cluster), blobs_of(cluster)
    for given, found in zip(arrays(100), hub.map(np.negative, arrays(100), timeout=LIMIT_S), strict=True):
        assert np.array_equal(found, -given)
        found[0] = 1  # one's own
    future = hub.submit(np.negative, arrays(200)[0])
    assert future.result(LIMIT_S)[0] == -200
    assert sent_bytes(cluster) == sent
    assert len(blobs_of(cluster) - known) == 14
    assert os.listdir(cluster.home / "blobs" / "drafts") == []


@pytest.mark.home_site("values lie in files")
def test_from_elsewhere_values_travel_and_are_the_same(cluster: PrivateHub, far: dray.Hub) -> None:
    sent = sent_bytes(cluster)
    given = arrays(300)
    for one, found in zip(given, far.map(np.negative, given, timeout=LIMIT_S), strict=True):
        assert np.array_equal(found, -one)
        found[0] = 1
    assert far.submit(np.negative, given[0]).result(LIMIT_S)[0] == -300
    # The results were put there by the worker, which is near.
    assert sent_bytes(cluster) - sent == pytest.approx(6 * 8 * WIDE, rel=0.01)


def test_more_results_than_may_be_fetched_ahead(far: dray.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.client.calls.large_values.WAITING_BYTES", 8 * WIDE + 1_000)
    given = arrays(400, 8)
    results = far.map(np.negative, given, timeout=LIMIT_S, ordered=False)
    assert sorted(-found[0] for found in results) == [one[0] for one in given]


def test_arguments_far_ahead_of_their_use_are_read_from_the_disk(
    hub: dray.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.client.calls.large_values.AHEAD_BYTES", 0)
    given = arrays(500)
    assert [found[0] for found in hub.map(np.negative, given, timeout=LIMIT_S)] == [-one[0] for one in given]


@pytest.mark.home_site("values lie in files")
def test_equal_results_and_equal_arguments(cluster: PrivateHub, hub: dray.Hub) -> None:
    known = blobs_of(cluster)
    shared = np.full(WIDE, 0.5)
    found = list(hub.map(lambda array, number: array * 2, [shared] * 40, range(40), timeout=LIMIT_S))
    assert all(np.array_equal(one, shared * 2) for one in found)
    # An argument each, since the number is part of it, and one result.
    assert len(blobs_of(cluster) - known) == 41
    futures = [hub.submit(np.negative, shared) for _ in range(8)]
    assert {future.result(LIMIT_S)[0] for future in futures} == {-0.5}
    assert len(blobs_of(cluster) - known) == 43


def test_what_waits_to_be_used_is_counted_back_to_nothing(hub: dray.Hub) -> None:
    blobs = hub._opened()[1].functions.blobs
    shared = arrays(600)[0]
    for _ in range(2):
        # The second time the hub has them all, and nothing waits.
        list(hub.map(np.negative, arrays(600), timeout=LIMIT_S))
        assert hub.submit(np.negative, shared).result(LIMIT_S)[0] == -600
        with pytest.raises(TypeError):
            hub.submit(len, 1, shared).result(LIMIT_S)
    assert blobs._ahead_bytes == 0


def test_over_the_cap_is_refused_with_the_limit_on_either_side() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("DRAY_")]:
            patch.delenv(name)
        patch.setenv("DRAY_HUB_MAX_BLOB_BYTES", "500000")
        small = PrivateHub()
    try:
        with dray.connect(home=small.home) as hub:
            with pytest.raises(TooLarge, match="limit of 500000"):
                _ = hub.submit(len, bytes(500_001))
            failed = hub.submit(bytes, 500_001)
            with pytest.raises(dray.CallFailed, match="limit of 500000"):
                failed.result(LIMIT_S)
            assert hub.submit(len, bytes(400_000)).result(LIMIT_S) == 400_000
    finally:
        small.stop()
