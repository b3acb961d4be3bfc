"""Carries out what was decided about launches and tells what became of it: commands are run, sites asked what is there.

Beside the turns, and bounded: a site that hangs holds up its own launches and no others. Before a command runs it is
committed that it may have: a hub that comes back, or takes over, looks which machines the site names and goes on with
those. What a site names and no record does is left alone; what is over and still named is ended again. The surprising
rule: a launch is never started a second time; one of which nothing is heard fails, and another is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import Clock, Event
from dray.core.lifecycle.state.service_events import LaunchMoved, LaunchSaid
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.launching import KUBERNETES, SLURM, SSH, Launch
from dray.core.model.records.ledger import LaunchRecord
from dray.errors import DrayError, InvalidConfig, NotReady
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.launchers.base import Machine, Order, Site, SiteFault
from dray.hub.launchers.own_command import OwnCommand
from dray.hub.launchers.slurm import Slurm
from dray.hub.launchers.ssh import Ssh
from dray.hub.store.base import AuditRecord

EVERY_S, LIST_S = 5.0, 30.0
AT_ONCE = 16
AGAIN_S, LONGEST_AGAIN_S = 10.0, 300.0
MARGIN_S = 3600.0
HUB = Caller("", "", ("admin",))
logger = logging.getLogger("dray.hub.launchers")


def open_site(name: str, launch: Launch) -> Site:
    """The way of a launcher."""
    if launch.way == SLURM:
        return Slurm(name, launch)
    if launch.way == SSH:
        return Ssh(name, launch)
    if launch.way == KUBERNETES:
        try:
            from dray.hub.launchers.kubernetes import Kubernetes
        except ImportError as missing:
            raise InvalidConfig(
                f"launcher {name} needs {missing.name}, which is not installed here: pip install 'dray[kubernetes]'"
            ) from missing
        return Kubernetes(name, launch)
    return OwnCommand(name, launch)


class Opened(NamedTuple):
    """A launcher's site and the terms that it was opened by."""

    launch: Launch
    site: Site


class Retry(NamedTuple):
    """When an end that failed is tried again, and how long the pause after that is."""

    at_s: float
    pause_s: float


class LaunchDesk:
    """One hub's. Made with its engine, run beside it, cancelled with it."""

    def __init__(self, engine: Engine, tokens: Tokens, tell_join: Callable[[str], str]) -> None:
        self._engine, self._tokens, self._tell_join = engine, tokens, tell_join
        self._sites: dict[str, Opened] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._wake = asyncio.Event()
        self._retries: dict[str, Retry] = {}
        self._listed_s: dict[str, float] = {}
        # Machines that a site names and no record does, by launcher; only told.
        self.strangers: dict[str, list[Machine]] = {}

    def hear(self, note: Note) -> None:
        """Hear of what was decided about launches."""
        if note.type.startswith("launch_") or note.type == "policy_changed":
            self._wake.set()

    async def run(self) -> None:
        """Look at what is to be done, whenever something was decided and now and then, until cancelled."""
        try:
            while True:
                self._look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), EVERY_S)
                self._wake.clear()
        finally:
            for task in self._busy.values():
                task.cancel()

    def _look(self) -> None:
        state, now_s = self._engine.state, asyncio.get_running_loop().time()
        for name in {
            *state.launches,
            *(n for n, p in state.policy.providers.items() if p.launch is not None),
        }:
            launch = launches.launch_of(state, name)
            if launch is None and name not in self._sites:
                continue
            for launch_id, record in list(launches.of_launcher(state, name)):
                if record.state == launches.ASKED:
                    self._begin(launch_id, self._start(launch_id, name))
                elif record.state == launches.ENDING and self._may_try(launch_id, now_s):
                    self._begin(launch_id, self._end(launch_id, name, record))
            if now_s - self._listed_s.get(name, -LIST_S) >= LIST_S and state.launches.get(name):
                self._listed_s[name] = now_s
                self._begin(f"list {name}", self._list(name))

    def _may_try(self, launch_id: str, now_s: float) -> bool:
        retry = self._retries.get(launch_id)
        return retry is None or retry.at_s <= now_s

    def _begin(self, key: str, work: Awaitable[None]) -> None:
        if key in self._busy:
            work.close()  # type: ignore[attr-defined]  # a coroutine that nobody awaits
            return

        async def carry_out() -> None:
            try:
                async with self._places:
                    await work
            except (NotReady, asyncio.CancelledError):
                raise
            except (DrayError, SiteFault) as fault:
                logger.warning("%s: %s", key, fault.message)
            except Exception:
                logger.exception("%s failed; it is tried again", key)
            finally:
                self._busy.pop(key, None)

        self._busy[key] = asyncio.create_task(carry_out())

    def _site(self, name: str) -> Site:
        """The site of a launcher; of one that left the policy as it was last."""
        launch = launches.launch_of(self._engine.state, name)
        opened = self._sites.get(name)
        if launch is not None and (opened is None or opened.launch != launch):
            opened = self._sites[name] = Opened(launch, open_site(name, launch))
        if opened is None:
            raise SiteFault(f"there is no launcher {name}")
        return opened.site

    # --- start --------------------------------------------------------------------------------------------------------

    async def _start(self, launch_id: str, name: str) -> None:
        launch = launches.launch_of(self._engine.state, name)
        if launch is None or not await self._engine.change(_begin_start(launch_id)):
            return
        try:
            site = self._site(name)
            made = await self._tokens.create(
                HUB, _user_of(self._engine.state, launch_id), ("join",), launch.start_s + MARGIN_S, launch_id
            )
            join = words_of(launch, shlex.split(self._tell_join(made["token"])), launch_id)
            handle = await site.start(Order(launch_id, name, launch, join))
        except SiteFault as fault:
            if fault.unsure:
                await self._fold(LaunchSaid(launch_id, fault.message))
            else:
                await self._fold(LaunchMoved(launch_id, launches.ENDING, fault.message, failed=True))
        except DrayError as fault:
            await self._fold(LaunchMoved(launch_id, launches.ENDING, fault.message, failed=True))
        else:
            await self._fold(LaunchSaid(launch_id, "started", handle))

    # --- end ----------------------------------------------------------------------------------------------------------

    async def _end(self, launch_id: str, name: str, record: LaunchRecord) -> None:
        if token := self._tokens.made_for(launch_id):
            # From here on nobody joins by this name; whoever is connected hears so.
            await self._tokens.revoke(HUB, token)
        if record.started_at_ms:
            try:
                await self._site(name).end(launch_id, record.handle)
            except SiteFault as fault:
                if record.handle or fault.unsure:
                    await self._put_off(launch_id, record, fault)
                    return
        self._retries.pop(launch_id, None)
        over = launches.FAILED if record.failed else launches.ENDED
        await self._fold(LaunchMoved(launch_id, over))

    async def _put_off(self, launch_id: str, record: LaunchRecord, fault: SiteFault) -> None:
        before = self._retries.get(launch_id)
        pause_s = AGAIN_S if before is None else min(LONGEST_AGAIN_S, before.pause_s * 2)
        self._retries[launch_id] = Retry(asyncio.get_running_loop().time() + pause_s, pause_s)
        logger.warning("launch %s cannot be ended: %s", launch_id, fault.message)
        if record.said != (said := f"cannot be ended: {fault.message}"):
            await self._fold(LaunchSaid(launch_id, said))

    # --- what is there ------------------------------------------------------------------------------------------------

    async def _list(self, name: str) -> None:
        """Hold what the site names against what is known."""
        began_ms = self._engine.state.now_ms
        site = self._site(name)
        machines = await site.machines()
        if machines is None:
            return
        state = self._engine.state
        named: dict[str, list[Machine]] = {}
        for machine in machines:
            named.setdefault(machine.id, []).append(machine)
        self.strangers[name] = [one for key, found in named.items() for one in _strange(state, key, found)]
        for launch_id, record in list(launches.of_launcher(state, name)):
            if launch_id in self._busy or record.since_ms > began_ms:
                # What changed since the site was asked is looked at the next time.
                continue
            await self._compare(site, launch_id, record, named.get(launch_id, []))

    async def _compare(self, site: Site, launch_id: str, record: LaunchRecord, named: list[Machine]) -> None:
        own = next((one for one in named if one.handle == record.handle), None)
        if record.state in launches.OVER:
            for machine in named:
                await site.end(launch_id, machine.handle)
            return
        if record.handle and own is not None:
            # Of two machines by one name nobody knows which has joined, so both stay until the launch is over; the
            # token lets one of them in.
            if record.state in launches.COMING and own.said and own.said != record.said:
                await self._fold(LaunchSaid(launch_id, own.said, own.handle))
        elif named and not record.handle:
            first = min(named, key=lambda machine: (len(machine.handle), machine.handle))
            await self._fold(LaunchSaid(launch_id, first.said or "found", first.handle))
        elif record.state == launches.STARTING and not named:
            waited_ms = self._engine.state.now_ms - record.since_ms
            launch = launches.launch_of(self._engine.state, record.launcher)
            if launch is None or waited_ms > 2 * launch.command_s * 1000:
                why = "the site knows nothing of it" + (f" any more ({record.said})" if record.said else "")
                await self._fold(LaunchMoved(launch_id, launches.ENDING, why, failed=True))

    async def _fold(self, *events: Event) -> None:
        await self._engine.change(lambda state, clock: Decision(events))


def _strange(state: State, launch_id: str, named: list[Machine]) -> list[Machine]:
    """Machines of which a hub makes nothing: all of a launch that it does not know, and any beside its one machine."""
    record = launches.find(state, launch_id)
    if record is None:
        return named
    others = [machine for machine in named if machine.handle != record.handle]
    return others if record.handle and len(others) < len(named) else []


def _begin_start(launch_id: str) -> Callable[[State, Clock], Decision]:
    """Commit that a launch's command may run from now on; the answer says whether it may."""

    def decide(state: State, clock: Clock) -> Decision:
        record = launches.find(state, launch_id)
        if record is None or record.state != launches.ASKED:
            return Decision(answer=lambda after: False)
        audit = AuditRecord(clock.at_ms, record.user, "", "launch.start", launch_id, record.why[:512])
        events: list[Any] = [LaunchMoved(launch_id, launches.STARTING)]
        return Decision(events, lambda after: True, (audit,))

    return decide


def _user_of(state: State, launch_id: str) -> str:
    record = launches.find(state, launch_id)
    return (record.user if record is not None else "") or "launcher"


def words_of(launch: Launch, join: list[str], launch_id: str) -> tuple[str, ...]:
    """The join line as the words that run where the machine is: `dray` and the hub as it finds them there."""
    rest = join[1:]
    if launch.hub:
        places = [place for place, word in enumerate(rest) if word == "--hub"]
        for place in reversed(places):
            del rest[place : place + 2]
        rest += ["--hub", launch.hub]
    return (launch.program, *rest, "--name", launch_id)
