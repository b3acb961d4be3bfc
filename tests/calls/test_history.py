"""A hub's history with calls of functions in it, replayed by `dray sim --history`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import dray
from dray.cli.main import main
from dray.client.faces.private_hub import PrivateHub


@pytest.mark.home_site("the simulation replays its file")
def test_a_map_in_the_history_is_replayed_as_the_places_it_held(
    cluster: PrivateHub,
    hub: dray.Hub,
    capsys: pytest.CaptureFixture[str],
    wait_until: Callable[..., object],
) -> None:
    assert list(hub.map(abs, range(-40, 0))) == list(range(40, 0, -1))
    hub.submit(["true"]).result(30)

    def replayed_jobs() -> int:
        if main(["sim", "--history", "--home", str(cluster.home), "-o", "json"]):
            return 0  # nothing of it is in the rows yet
        (replay,) = json.loads(capsys.readouterr().out)["replays"]
        return int(replay["jobs"])

    # Rows follow what is recorded a little later.
    wait_until(lambda: replayed_jobs() >= 2, what="the map and the command in the replay")
