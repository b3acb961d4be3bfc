"""The agent's shell: carries events to the machine and its effects to supervisor, hub and files. Decides nothing
itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from dray.agent.addresses import find_address, find_port
from dray.agent.environment import build_environment, build_task, is_careful
from dray.agent.link import Link
from dray.agent.machine import (
    Effect,
    Launch,
    Machine,
    Refuse,
    Ship,
    Supervise,
    Tell,
    Warn,
    gang_meta,
    known_to_hub,
)
from dray.agent.session_home import SessionHome
from dray.agent.shipping import Shipper
from dray.agent.supervisor.client import SupervisorClient, SupervisorError
from dray.agent.task_sessions import TaskSessions
from dray.agent.task_words import Words
from dray.config import AgentConfig

LOOK_MIN_S, LOOK_MAX_S = 0.05, 1.0
GIVING_UP = 4400
# Together with the moment for which the supervisor holds first words back: 10 ms.
YOUNG_S = 0.005
ACK_WITHIN_S = 0.05
ACKS_AT_ONCE = 256
logger = logging.getLogger("dray.agent")


class Driver:
    """One agent at work."""

    def __init__(self, config: AgentConfig, machine: Machine, home: Path) -> None:
        self._config, self._machine, self._home = config, machine, home
        self._supervisor: SupervisorClient | None = None
        self.link = Link(config, self._hub_said)
        self._shipper = Shipper(home / "attempts", config.log_window_bytes, self._push_log)
        self._runs: list[dict[str, Any]] = []
        self._acks: list[str] = []
        self._ack_due: asyncio.TimerHandle | None = None
        self._young: dict[str, tuple[float, list[Tell]]] = {}
        self._growing = False
        self._careful: set[str] = set()
        self._own = dict(os.environ)
        self._look = asyncio.Event()
        self._unshipped: set[str] = set()
        self._work = str(home / "work")
        os.makedirs(self._work, exist_ok=True)
        self._sessions: TaskSessions | None = None

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Let tasks speak through their sessions; where that cannot be, they run without."""
        try:
            sessions = TaskSessions(SessionHome(self._home, self._config.task_user), self)
            await sessions.start()
        except (OSError, KeyError) as fault:
            logger.error("tasks get no session, the socket for it could not be made: %s", fault)
        else:
            self._sessions = sessions

    def stop_listening(self) -> None:
        """Let tasks know at once that this agent is gone; they look for the next."""
        if self._sessions is not None:
            self._sessions.close()

    def task_greeted(self, uid: str) -> dict[str, Any]:
        """A task opened its session."""
        return self._machine.greeted(uid, _now_ms())

    def task_said(self, uid: str, words: Words) -> None:
        """A task said something through its session."""
        self._carry_out(self._machine.task_said(uid, words, _now_ms()))

    # --- the supervisor -----------------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Reach the supervisor (starting one where none runs) and take over what it holds."""
        options = ["--keep-s", str(self._config.terminal_s), "--keep-records", str(self._config.terminal_max)]
        self._supervisor = await SupervisorClient.open(self._home, options=options)
        self._supervisor.send({"op": "hello"})
        self._machine.greeting([task["uid"] for task in self._runs])

    async def serve_supervisor(self, attached: asyncio.Event) -> None:
        """Pass the supervisor's events on; when it dies, start another, which reports what became of its tasks."""
        while True:
            assert self._supervisor is not None  # attach() comes first
            async for event in self._supervisor.events():
                if event.get("ev") == "state":
                    self._machine.attached(event, _now_ms())
                    self._report_all()
                    attached.set()
                elif event.get("ev") == "error":
                    logger.warning("the supervisor could not do something: %s", event.get("error"))
                else:
                    self._carry_out(self._machine.supervised(event, _now_ms()))
            logger.error("the supervisor is gone: starting another, its tasks are reported lost")
            await self._reattach()

    async def _reattach(self) -> None:
        while True:
            try:
                await self.attach()
            except (SupervisorError, OSError) as fault:
                logger.error("no supervisor could be started: %s", fault)
                await asyncio.sleep(1)
            else:
                return

    def _report_all(self) -> None:
        """After a new supervisor: what ended with the old one is told in the running session."""
        if self._machine.registered:
            self._carry_out(self._machine.report(_now_ms()))

    # --- the hub ------------------------------------------------------------------------------------------------------

    def _hub_said(self, kind: str, body: Any, error: str) -> None:
        machine = self._machine
        if kind == "ack":
            self.link.answered()
            if body.heartbeat_s:
                self.link.heartbeat_s = body.heartbeat_s
            if body.log_offsets:
                self._shipper.received(body.log_offsets)
                self._release_shipped()
            if body.re == "register":
                # What was read while no session could carry it is read again.
                self._shipper.rewind()
                self._shipper.retain(known_to_hub(body) | self._unshipped)
            self._carry_out(machine.acked(body, _now_ms()))
            if body.re == "register":
                self._look.set()
        elif kind == "job_assign":
            self._carry_out(machine.assigned(body, _now_ms()))
        elif kind == "job_go":
            self._carry_out(machine.go(body, _now_ms()))
        elif kind == "job_cancel":
            self._carry_out(machine.cancelled(body))
        elif kind == "error":
            self.link.answered()
            if machine.registered:
                logger.warning("the hub refused something: %s", error)
            else:
                logger.error("the hub does not take this worker: %s", error)
                self._closing = asyncio.ensure_future(self.link.close(GIVING_UP, "not registered"))

    def registration(self) -> dict[str, Any]:
        """The first message of a session, with the address at which this session's machine can be met."""
        self._machine.address = self._config.address or find_address(self.link.local_address)
        return self._machine.registration()

    async def session_over(self) -> None:
        """The socket is gone; what runs goes on."""
        self._machine.disconnected()
        self._young.clear()
        self._shipper.rewind()

    async def beat(self) -> None:
        """Heartbeats while a session lasts."""
        while True:
            await asyncio.sleep(self.link.heartbeat_s * (0.9 + 0.2 * (time.monotonic_ns() % 1000) / 1000))
            if self._machine.registered:
                self._carry_out([self._machine.heartbeat(_now_ms())])

    async def resend(self) -> None:
        """Send results again until the hub has them."""
        while True:
            await asyncio.sleep(0.5)
            self._carry_out(self._machine.resend(_now_ms()))

    async def ship(self) -> None:
        """Look for output of what runs: often while some comes, seldom while none does."""
        delay_s = LOOK_MIN_S
        while True:
            if not self._shipper.parcels or not self._machine.registered:
                self._look.clear()
                await self._look.wait()
                delay_s = LOOK_MIN_S
            moved = self._shipper.look()
            self._release_shipped()
            delay_s = LOOK_MIN_S if moved else min(LOOK_MAX_S, delay_s * 1.5)
            await asyncio.sleep(delay_s)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._tell(effect)
            elif isinstance(effect, Launch):
                self._launch(effect)
            elif isinstance(effect, Supervise):
                self._supervise(effect.request)
            elif isinstance(effect, Ship):
                self._follow(effect.uid, effect.task_id, effect.ended)
            elif isinstance(effect, Warn):
                if self._sessions is not None:
                    self._sessions.warn(effect.uid, effect.stop)
            elif isinstance(effect, Refuse):
                logger.error("%s: leaving it", effect.reason)
                self._closing = asyncio.ensure_future(self.link.close(4400, effect.reason))

    def _tell(self, message: Tell) -> None:
        """Send a message; the first words about an attempt wait a moment, since its result may make them needless.

        An attempt that ends at once then costs the hub one commit instead of two. Where a second run would do harm the
        hub hears of the first without delay.
        """
        uid = message.payload.get("attempt", "")
        if message.type in ("job_accepted", "job_started"):
            if uid in self._careful:
                self._push_first(message)
                return
            loop = asyncio.get_running_loop()
            if uid not in self._young:
                self._young[uid] = (loop.time() + YOUNG_S, [])
            self._young[uid][1].append(message)
            if not self._growing:
                self._growing = True
                loop.call_later(YOUNG_S, self._grow_up)
            return
        if message.type == "job_progress":
            # Or the hub would hear of it before it hears of the start.
            for first in self._young.pop(uid, (0.0, []))[1]:
                self._push_first(first)
        if message.type == "job_result":
            self._young.pop(uid, None)
            self._careful.discard(uid)
        self.link.push(message.type, message.payload, message.acked)

    def _grow_up(self) -> None:
        """One timer for all that are young: nearly every one of them ends before it is told of."""
        loop = asyncio.get_running_loop()
        while self._young:
            uid, (due, messages) = next(iter(self._young.items()))
            if due > loop.time():
                loop.call_at(due, self._grow_up)
                return
            del self._young[uid]
            for message in messages:
                self._push_first(message)
        self._growing = False

    def _push_first(self, message: Tell) -> None:
        self.link.push(message.type, message.payload, message.acked)
        if message.type == "job_started":
            self._follow(message.payload["attempt"], message.payload["task_id"], ended=False)

    def _launch(self, launch: Launch) -> None:
        if is_careful(launch.spec):
            self._careful.add(launch.uid)
        environment = build_environment(launch, self._machine.name, self._own, self._machine.devices)
        if self._sessions is not None:
            environment |= self._sessions.variables(launch.uid)
        task = build_task(launch, environment, self._work, self._config.task_user)
        if launch.gang is not None:
            task["meta"]["gang"] = gang_meta(launch.gang, [find_port()])
            self._supervise({"op": "prepare", "tasks": [task]})
            return
        if not self._runs:
            asyncio.get_running_loop().call_soon(self._flush_runs)
        self._runs.append(task)

    def _flush_runs(self) -> None:
        """One request for all tasks of one frame: the supervisor syncs its journal once for them."""
        runs, self._runs = self._runs, []
        self._request(*self._take_acks(), {"op": "run", "tasks": runs})

    def _release_shipped(self) -> None:
        """Let the supervisor forget what the hub has recorded once its output has arrived as well."""
        shipped = [uid for uid in self._unshipped if uid not in self._shipper.parcels]
        if shipped:
            self._unshipped -= {*shipped}
            self._supervise({"op": "acked", "uids": shipped})

    def _supervise(self, request: dict[str, Any]) -> None:
        if request["op"] == "acked":
            # Not yet: an agent that is killed now would find no trace of an attempt whose output is still on its way.
            held = {uid for uid in request["uids"] if uid in self._shipper.parcels}
            self._unshipped |= held
            self._acks += [uid for uid in request["uids"] if uid not in held]
            self._ack_soon()
        else:
            self._request(request)

    def _ack_soon(self) -> None:
        """Acks go with the next tasks or within a moment: the supervisor only forgets by them."""
        if len(self._acks) >= ACKS_AT_ONCE:
            self._flush_acks()
        elif self._acks and self._ack_due is None:
            self._ack_due = asyncio.get_running_loop().call_later(ACK_WITHIN_S, self._flush_acks)

    def _flush_acks(self) -> None:
        self._request(*self._take_acks())

    def _take_acks(self) -> list[dict[str, Any]]:
        if self._ack_due is not None:
            self._ack_due.cancel()
            self._ack_due = None
        uids, self._acks = self._acks, []
        return [{"op": "acked", "uids": uids}] if uids else []

    def _request(self, *requests: dict[str, Any]) -> None:
        try:
            if self._supervisor is not None and requests:
                self._supervisor.send(*requests)
        except ConnectionError:
            words = ", ".join(request["op"] for request in requests)
            logger.warning("the supervisor went away with a request: %s", words)

    def _follow(self, uid: str, task_id: str, ended: bool) -> None:
        self._shipper.follow(uid, task_id, ended)
        self._look.set()

    def _push_log(self, kind: str, payload: dict[str, Any]) -> None:
        self.link.push(kind, payload, acked=True)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
