"""A hub that is behind with its work takes nobody for silent whose words it has not read yet."""

from __future__ import annotations

from asyncio import Future, new_event_loop

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Phase
from dray.hub.engine.inbox import Inbox
from dray.hub.engine.turns import Conductor, Decision, Request
from dray.hub.rows import Rows, RowsWanted, job_row
from dray.hub.store.memory import MemoryStore

AWAY_MS = 130_000


class Desk:
    """A hub that takes one request in each turn. Each of its workers runs something."""

    def __init__(self, *workers: str) -> None:
        self.cluster, store = Cluster(), MemoryStore()
        store.begin_epoch()
        for worker in workers:
            self.cluster.join(worker, credit=1, beats=False)
            self.cluster.submit(f"on-{worker}")
            self.cluster.run(self.cluster.current(f"on-{worker}"))
        self.inbox = Inbox(1)
        self.conductor = Conductor(Rows(self.cluster.state, store), 0, self.inbox)

    def say(self, worker: str, wants_rows: bool = False) -> None:
        """A worker says something, which waits for its turn; where it wants rows that is put back once."""
        left = [RowsWanted([job_row(f"on-{worker}")])] if wants_rows else []

        def decide(state: State, clock: Clock) -> Decision:
            if left:
                raise left.pop()
            return Decision(self.cluster.sign_of_life(worker))

        self.inbox.add(Request(decide, None, who=worker))

    def turn(self) -> None:
        list(self.conductor.turn(self.conductor.take_back() or self.inbox.take(), (), self.cluster.clock))

    def phases(self) -> dict[str, Phase]:
        return {attempt.worker: attempt.phase for attempt in self.cluster.state.attempts.values()}


@pytest.mark.parametrize("wants_rows", [False, True])
def test_whose_words_wait_for_a_later_turn_is_not_silent(wants_rows: bool) -> None:
    desk = Desk("w1", "w2")
    desk.cluster.now_ms += AWAY_MS
    desk.say("w2")
    desk.say("w1", wants_rows)
    while desk.inbox or desk.conductor.put_back:
        desk.turn()
        assert desk.phases() == {"w1": Phase.RUNNING, "w2": Phase.RUNNING}
    desk.cluster.now_ms += AWAY_MS
    desk.say("w2")
    desk.turn()
    assert desk.phases() == {"w1": Phase.LOST, "w2": Phase.RUNNING}, "once all of it was read"


def test_whom_a_digest_that_waits_shows_to_be_there_is_not_silent() -> None:
    """Somebody awaits its answer, and that is no person."""
    desk = Desk("w1", "w2")
    desk.cluster.now_ms += AWAY_MS
    desk.say("w2")
    loop = new_event_loop()
    read = Decision(desk.cluster.sign_of_life("w1"))
    desk.inbox.add(Request(lambda state, clock: read, Future(loop=loop), brings=("w1",)))
    loop.close()
    desk.turn()
    assert desk.phases() == {"w1": Phase.RUNNING, "w2": Phase.RUNNING}


def test_nor_do_they_count_among_those_that_fell_silent_at_once() -> None:
    desk = Desk("w1", "w2", "w3", "w4", "w5")
    desk.cluster.now_ms += AWAY_MS
    for worker in ("w1", "w2", "w3"):
        desk.say(worker)
    desk.turn()
    assert not desk.cluster.state.braked
    assert [worker for worker, phase in desk.phases().items() if phase is Phase.LOST] == ["w4", "w5"]


def test_words_that_are_no_sign_of_life_put_a_loss_off_until_they_are_read() -> None:
    """As those of another machine under its name, which is turned away."""
    desk = Desk("w1", "w2")
    desk.cluster.now_ms += AWAY_MS
    desk.say("w2")
    desk.inbox.add(Request(lambda state, clock: Decision(), None, who="w1"))
    desk.turn()
    assert desk.phases() == {"w1": Phase.RUNNING, "w2": Phase.RUNNING}
    desk.turn()
    desk.cluster.now_ms += 1000
    desk.say("w2")
    desk.turn()
    assert desk.phases() == {"w1": Phase.LOST, "w2": Phase.RUNNING}


def test_what_a_person_of_the_same_name_asks_is_no_sign_of_life() -> None:
    desk = Desk("w1", "w2")
    desk.cluster.now_ms += AWAY_MS
    desk.say("w2")
    loop = new_event_loop()
    desk.inbox.add(Request(lambda state, clock: Decision(), Future(loop=loop), who="w1"))
    loop.close()
    desk.turn()
    assert desk.phases() == {"w1": Phase.LOST, "w2": Phase.RUNNING}
