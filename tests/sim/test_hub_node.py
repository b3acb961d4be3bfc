"""The hub's site in the simulation: backups are copies, and a hub that lost its store ends."""

from __future__ import annotations

import pytest

from dray.core.lifecycle.state.timings import Rules
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.runs import Runs
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.network import Connection, Weather
from dray.sim.faults.world.world import SMALL, World


def start_site(turn_work: int = 64) -> tuple[World, HubNode]:
    world = World(1, SMALL)
    hub = HubNode(world, Rules())
    hub.turn_work = turn_work
    Checker(world, hub, Runs(world, hub))
    hub.start()
    return world, hub


def let_pass(world: World, until_ms: int) -> None:
    while world.now_ms < until_ms and world.step():
        pass


def test_a_stale_hub_with_nothing_to_write_ends_as_well():
    world, hub = start_site()
    let_pass(world, 1000)
    stale = hub.now
    hub.start_second()
    let_pass(world, 130_000)
    assert not stale.up
    assert hub.up
    assert world.counts["hub ended by epoch_lost"] == 1


def test_a_stale_hub_does_not_take_its_store_back_for_a_worker_that_saw_a_later_one():
    world, hub = start_site()
    let_pass(world, 1000)
    stale = hub.now
    hub.start_second()
    connection = Connection(world, Weather(), 7, "w")
    stale.connect(connection)
    register = {"id": "w", "capabilities": {}, "max_epoch_seen": 9}
    connection.send_up({"type": "register", "payload": register})
    let_pass(world, world.now_ms + 10)
    assert not stale.up
    assert hub.up
    assert hub.file.epoch == hub.now.store.epoch


@pytest.mark.parametrize("features", [["list"], None], ids=["knows-answers", "base-only"])
def test_a_heartbeat_is_answered_before_bulk_work_that_waits(features):
    """Of a base-only peer it is not: it may tell answers apart by their order alone."""
    world, hub = start_site(turn_work=4)
    connection, heard = Connection(world, Weather(ordered=True), 7, "w"), list[str]()
    connection.to_agent = lambda _, message: heard.append(message["type"])
    hub.connect(connection)
    register = {"id": "w", "capabilities": {}, "features": features}
    connection.send_up({"type": "register", "payload": register})
    let_pass(world, world.now_ms + 100)
    heard.clear()
    slots = {"batch_total": 1}
    for _ in range(40):
        payload = {"worker_id": "w", "slots": slots, "reason": "polling"}
        connection.send_up({"type": "ready_for_work", "payload": payload})
    connection.send_up({"type": "heartbeat", "payload": {"worker_id": "w", "slots": slots}})
    let_pass(world, world.now_ms + 1000)
    assert sorted(set(heard)) == ["ack", "no_work"]
    assert (len(heard), heard.count("ack")) == (41, 1), "every poll and the heartbeat have one answer each"
    assert (heard.index("ack") < 20) is (features is not None)


def test_a_backup_stays_as_it_was():
    world, hub = start_site()
    let_pass(world, 1000)
    backup = hub.back_up(None)
    before = (backup.file.last_seq, dict(backup.file.log))
    hub.die("killed")
    let_pass(world, 90_000)
    assert hub.file.last_seq > before[0]
    assert (backup.file.last_seq, backup.file.log) == before
    hub.restore(backup)
    let_pass(world, 100_000)
    assert hub.up
    assert hub.file is not backup.file
