"""Which part a hub plays: it stands by or leads, since when, after whom and why. What people are told of that.

`Role` lives as long as the process, across engines and take-overs; it decides nothing. `HubRoles` answers for a hub
that leads; of one that stands by the front tells `Role.describe` to whoever asks: it has no tokens to know them by.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.errors import Conflict
from dray.hub.access.caller import Caller
from dray.hub.documents.records import Document, moment
from dray.hub.engine.engine import Engine
from dray.hub.engine.follower import Follower
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord, HubsSeen, Led, Remote, Store

STARTING, STANDBY, LEADER = "starting", "standby", "leader"
ANSWER_S = 0.05
CLOCK_OFF_S = 5.0
_WHY = {
    "first": "nobody had led before",
    "restarted": "this hub led before, and was started again",
    "resigned": "the one before resigned",
    "silent": "the one before was silent for {after:.1f} s",
}


class Resigned(Exception):
    """This hub was asked to hand over."""


class Role:
    """What one process is to the others, from its start on."""

    def __init__(self) -> None:
        self.name, self.url, self.id = STARTING, "", ""
        self.since_ms = _now_ms()
        self.leader, self.epoch = "", 0
        self.resigned = False
        self._follower: Follower | None = None
        # Of a hub that leads: how many workers are connected to it.
        self.sessions: Callable[[], int] = lambda: 0
        # Requests of clients that were answered here while another hub led, and those that were passed on.
        self.served: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._led: Led | None = None
        self._led_at_ms = 0

    def stand_by(self, leader: str, epoch: int, follower: Follower) -> None:
        """Another hub leads, at this address; empty while nobody can tell."""
        self._become(STANDBY)
        self.sessions = lambda: 0
        self._follower, self.leader, self.epoch = follower, leader, epoch

    def lead(self, url: str, epoch: int, remote: Remote | None) -> None:
        """This one leads."""
        self._become(LEADER)
        self._follower, self.leader, self.epoch, self.resigned = None, url, epoch, False
        if remote is not None:
            self.id, self._led, self._led_at_ms = remote.id, remote.led, self.since_ms

    def _become(self, name: str) -> None:
        if self.name != name:
            self.name, self.since_ms = name, _now_ms()

    def describe(self) -> Document:
        """This hub's part, and how it last came to lead."""
        follower, led = self._follower, self._led
        lag = follower.lag if follower is not None else 0
        takeover = None
        if led is not None:
            why = _WHY[led.why].format(after=led.after_s)
            before = led.before.partition(".")[0]
            takeover = {
                "at": moment(self._led_at_ms),
                "cause": led.why,
                "why": why,
                "after_s": round(led.after_s, 3),
            }
            takeover["before"] = before or None
        answered, passed_on = self.served()
        return {
            "id": self.id,
            "role": self.name,
            "since": moment(self.since_ms),
            "url": self.url,
            "leader": self.leader or None,
            "epoch": self.epoch,
            "lag": lag if self.name != STARTING else None,
            "told_turns": follower.heard if follower is not None else 0,
            "answered": answered,
            "passed_on": passed_on,
            "takeover": takeover,
        }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class HubRoles:
    """What a hub that leads says about itself and those that stand by."""

    def __init__(self, role: Role, store: Store, engine: Engine) -> None:
        self._role, self._store, self._engine = role, store, engine

    async def status(self, caller: Caller) -> Document:
        """This hub's part."""
        return self._role.describe()

    async def list(self, caller: Caller) -> Document:
        """All hubs of the store; one that keeps it in its home is alone."""
        remote, role = self._store.remote, self._role
        if remote is None:
            own: Document = {"id": "", "url": role.url, "role": LEADER, "epoch": self._store.epoch}
            return {
                "hubs": [{**own, "seen_s": 0.0, "lag": 0, "version": "", "workers": role.sessions()}],
                "shared": False,
            }
        found = await asyncio.wrap_future(remote.list_hubs_soon())
        return {"hubs": list_hubs(found), "shared": True}

    async def resign(self, caller: Caller) -> Document:
        """Hand over to one that stands by; refused where there is none."""
        remote = self._store.remote
        if remote is None:
            raise Conflict("this hub keeps its store in its home: no other hub could lead there")
        found = await asyncio.wrap_future(remote.list_hubs_soon())
        others = [hub for hub in list_hubs(found) if hub["role"] == STANDBY]
        if not others:
            raise Conflict("no other hub stands by: nobody would lead. Start one on the same store first")

        def decide(state: State, clock: Clock) -> Decision:
            record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "hub.resign", remote.id, "")
            return Decision(audit=(record,), answer=lambda after: None)

        await self._engine.change(decide, who=caller.user, kind="resign")
        # The answer leaves first.
        why = Resigned(f"{caller.user} asked this hub to hand over")
        asyncio.get_running_loop().call_later(ANSWER_S, self._engine.fail, why)
        return {"resigned": True, "standbys": others}


def list_hubs(found: HubsSeen) -> list[Document]:
    """The hubs of a database, the one that leads first, then by how far they are."""
    rows: list[Document] = []
    for hub in found.hubs:
        leads = found.leads(hub)
        rows.append(
            {
                "id": hub.id,
                "url": hub.url,
                "role": LEADER if leads else STANDBY,
                "epoch": found.epoch,
                "seen_s": round(hub.age_s, 3),
                "lag": 0 if leads else max(0, found.last_seq - hub.seq) if hub.seq else None,
                "version": hub.version,
                "workers": hub.workers,
            }
        )
    return sorted(
        rows, key=lambda row: (row["role"] != LEADER, row["lag"] is None, row["lag"] or 0, row["id"])
    )


def checks_of(remote: Remote) -> list[Callable[[State], dict[str, Any]]]:
    """For the doctor: the store on its server, the hubs there, replication and clock."""

    def check(name: str, ok: bool, detail: str) -> dict[str, Any]:
        return {"name": name, "ok": ok, "detail": detail}

    def look_at_store(state: State) -> dict[str, Any]:
        return check("store", *remote.describe())

    def look_at_hubs(state: State) -> dict[str, Any]:
        found = remote.hubs
        others = [] if found is None else [row for row in list_hubs(found) if row["role"] == STANDBY]
        lags = [f"{row['id']} {_tell_lag(row['lag'])}" for row in others]
        told = f"{len(others)} stand by: {', '.join(lags)}" if others else "nobody stands by"
        return check("hubs", True, f"{remote.id} leads; {told}")

    def look_at_replication(state: State) -> dict[str, Any]:
        found = remote.hubs
        standbys = found.standbys if found is not None else ""
        told = f"commits wait for {standbys}" if standbys else "of one server: a failover may lose commits"
        return check("replication", True, told)

    def look_at_clock(state: State) -> dict[str, Any]:
        off_s = remote.hubs.ahead_s if remote.hubs is not None else 0.0
        told = f"the database's clock is {off_s:+.1f} s off this machine's: times in lists are wrong by that"
        sound = abs(off_s) < CLOCK_OFF_S
        return check("clock", sound, "" if sound else told)

    return [look_at_store, look_at_hubs, look_at_replication, look_at_clock]


def _tell_lag(lag: int | None) -> str:
    if lag is None:
        return "has not loaded yet"
    return "is up to date" if not lag else f"is {lag} turn{'s' if lag > 1 else ''} behind"
