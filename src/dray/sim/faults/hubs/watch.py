"""Several hubs on one store: judged by what the database holds, which no hub sees whole.

One history of turns without a gap, whoever wrote them; nothing leaves a hub while another one leads; nobody takes the
lead from one that could still renew; and a state that was kept warm is the one that the store gives.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.core.lifecycle.holding.attempts import adoptable
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.gangs import waits_for_go
from dray.core.model.records.records import Phase
from dray.hub.engine.recovery import recover
from dray.hub.store.base import Position, Turn
from dray.sim.faults.hubs.group import HubGroup, HubMachine
from dray.sim.faults.leads.standby import Taken
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.world import World

LOOK_MS = 5000
# As long as a process that is gone may stay away.
AWAY_MS = 12_000


class LeadWatch:
    """Watches the hubs of one site."""

    def __init__(self, world: World, group: HubGroup) -> None:
        self._world, self._group = world, group
        self._last = Position(0, 0)
        # The first turn of a hub that found turns lost may leave out their numbers; so it may again where the store
        # loses that very turn before it was answered, for it is committed once more.
        self._may_jump: dict[int, int] = {}
        self._begun: set[int] = set()
        self.assigned: dict[str, None] = {}
        world.at(LOOK_MS, self._look_for_leader)

    def took(self, number: int, machine: HubMachine, taken: Taken) -> None:
        """A hub has the lead, and its state."""
        group, lead = self._group, taken.lead
        if taken.led.why == "silent":
            if lead.store.quiet_ms < group.lease_ms:
                self._fail(machine, f"took the lead {lead.store.quiet_ms} ms after a beat")
            if taken.heard_ms < group.lease_ms:
                self._fail(machine, "took the lead by a silence that it could not have heard through")
        if lead.epoch != group.file.epoch or lead.over:
            return  # it has lost it again, and will find out
        known = machine.known
        if taken.lost is not None and known is not None:
            self._may_jump[number] = known.seq + 1
        recovered = recover(lead.store, group.rules)
        if spell(recovered.state) != spell(taken.recovered.state) or recovered.seq != taken.recovered.seq:
            self._fail(machine, f"begins with another state than the store gives, of turn {recovered.seq}")

    def _fail(self, machine: HubMachine, problem: str) -> None:
        self._world.fail(f"{machine.id} {problem}")

    def turned(self, life: HubLife) -> None:
        """Whoever was taken up from a gateway was told again what it may have missed."""
        state = life.state
        for worker, number in life.resumed:
            if state.presence[worker].session != number or number not in life.sessions.open:
                continue
            for uid in state.held.get(worker, ()):
                attempt = state.attempts[uid]
                due = attempt.phase in (Phase.ASSIGNED, Phase.STOPPING) and not attempt.lane
                if (due or waits_for_go(attempt)) and uid not in life.told_uids:
                    self._world.fail(
                        f"{worker} was taken up from a gateway, and is not told again of {uid}, {attempt.phase}"
                    )

    def leaves(self, life: HubLife) -> None:
        """Something is sent or answered."""
        file = self._group.file
        if life.number not in self._begun and life.lead is not None:
            self._world.fail(f"hub {life.number} speaks before its epoch is committed")
        if life.lead is None or life.astray or file.epoch <= life.store.epoch:
            return
        if file.holder != life.lead.store.holder:
            self._world.fail(
                f"hub {life.number} (epoch {life.store.epoch}) speaks while {file.holder} has epoch {file.epoch}"
            )

    def kept(self, life: HubLife, turn: Turn) -> None:
        """A turn is durable: the next one after the last, of the same epoch or a later one."""
        last, epoch = self._last, self._group.file.log[turn.seq].epoch
        self._last = Position(epoch, turn.seq)
        self._begun.add(life.number)
        jump = self._may_jump.get(life.number, 0)
        if turn.seq != max(jump, last.seq + 1) or epoch < last.epoch:
            self._world.fail(f"turn {turn.seq} of epoch {epoch} was committed after {last}")

    def rewind(self) -> None:
        """The store is an older one."""
        log = self._group.file.log
        seq = self._group.file.last_seq
        self._last = Position(log[seq].epoch if seq in log else 0, seq)
        self.assigned.clear()
        self._group.watch.rewind()
        self._group.registered.clear()

    def _look_for_leader(self) -> None:
        """Somebody leads, where nothing was in the way for long enough."""
        group, patience_ms = self._group, 3 * self._group.lease_ms + AWAY_MS
        group.note_troubles()
        idle_ms = self._world.now_ms - group.disturbed_ms
        for machine in group.machines:
            if machine.up and machine.node is not None and idle_ms > patience_ms:
                group.watch.look(machine.node)
        if idle_ms > patience_ms and not any(machine.leads for machine in group.machines):
            self._world.fail(f"nobody leads, {idle_ms} ms after anything went wrong")
        self._world.at(LOOK_MS, self._look_for_leader)

    def settle(self, folded: State) -> None:
        """Whatever was sent is in the log, and the log is one history."""
        for uid in self.assigned:
            if uid not in folded.attempts:
                self._world.fail(f"attempt {uid} was sent to a worker and is in no turn of the log")
        epochs = [entry.epoch for entry in self._group.file.log.values()]
        if epochs != sorted(epochs):
            self._world.fail(f"epochs fall along the log: {epochs}")


def spell(state: State) -> Any:
    """What is live, ledger and counters. Of attempts that have ended a recovery recalls some that nobody needs."""
    parts = []
    for name in ("jobs", "tasks", "attempts", "workers"):
        records = getattr(state, name)
        wanted = {
            key: record
            for key, record in records.items()
            if name != "attempts" or record.phase.live or adoptable(state, record)
        }
        parts.append({key: _plain(record) for key, record in wanted.items()})
    return parts, state.ledger, state.counters


def _plain(record: Any) -> dict[str, Any]:
    """Without numbers of shapes and parties, which are given out as they come; calls in order."""
    plain: dict[str, Any] = msgspec.structs.asdict(record) | {"shape": -1, "party": -1}
    if plain.get("calls"):
        plain["calls"] = (
            sorted(plain["calls"].items()) if isinstance(plain["calls"], dict) else plain["calls"]
        )
    return plain
