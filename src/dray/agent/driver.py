"""The agent's shell: carries events to the machine and its effects to supervisor, hub and files.

What to do is decided in `decide`. Only when something leaves is settled here: the first words about an attempt wait a
moment for its result, and what the supervisor may forget is told it once the output has been shipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dray.agent.decide.attempts import gang_meta, is_careful, known_to_hub
from dray.agent.decide.calls.calls import tell_no_account
from dray.agent.decide.effects import (
    BindRunner,
    Effect,
    FeedRunner,
    Grant,
    Launch,
    Lay,
    LetGo,
    Nudge,
    Prefetch,
    Probe,
    Recall,
    Refuse,
    Ship,
    StartRunner,
    Supervise,
    Tell,
    Warn,
)
from dray.agent.decide.leases import variables_of
from dray.agent.decide.machine import Machine
from dray.agent.decide.words import Words
from dray.agent.link import Link
from dray.agent.runners.blobs import Blobs
from dray.agent.runners.home import RunnerHome
from dray.agent.runners.runners import Runners
from dray.agent.supervisor.client import SupervisorClient, SupervisorError
from dray.agent.supervisor.records.owned_files import Place
from dray.agent.tasks.accounts import Account, Accounts
from dray.agent.tasks.addresses import find_address, is_free
from dray.agent.tasks.aside import do_aside
from dray.agent.tasks.checking import Checking
from dray.agent.tasks.environment import build_environment, build_task
from dray.agent.tasks.last_words import quote_failed
from dray.agent.tasks.session_home import SessionHome
from dray.agent.tasks.sessions import TaskSessions
from dray.agent.tasks.shipping import Shipper
from dray.agent.tasks.trial import make_trial, try_folders
from dray.agent.trees.desk import TreeDesk, TreeWays
from dray.agent.tunnel.execs import Execs
from dray.agent.tunnel.ports import Ports
from dray.agent.tunnel.tunnels import FEATURES, Openers, Tunnels
from dray.agent.usage.cards import CardWatch
from dray.config import AgentConfig
from dray.wire.streams.frames import AttachTarget, ExecTarget, PortTarget

LOOK_MIN_S, LOOK_MAX_S = 0.05, 1.0
GIVING_UP = 4400
# Together with the moment for which the supervisor holds first words back: 10 ms.
YOUNG_S = 0.005
ACK_WITHIN_S = 0.05
ACKS_AT_ONCE = 256
TICK_S = 0.025
# While nothing is expected to happen for a while: calls that run for long are looked at rarely.
QUIET_TICK_S = 0.25
LIVE_S = 0.5
DRAIN_S = 2.0
REATTACH_S, REATTACH_MAX_S = 1.0, 30.0
logger = logging.getLogger("dray.agent")


class Driver:
    """One agent at work."""

    def __init__(self, config: AgentConfig, machine: Machine, home: Path) -> None:
        self._config, self._machine, self._home = config, machine, home
        self._supervisor: SupervisorClient | None = None
        self.link = Link(config, self._hub_said)
        self.cards = CardWatch(config.sample_s)
        window, cap = config.log_window_bytes, config.output_bytes
        self._attempts = str(home / "attempts")
        self._shipper = Shipper(home / "attempts", window, cap, self._push_log)
        self._runs: list[dict[str, Any]] = []
        self._acks: list[str] = []
        self._ack_due: asyncio.TimerHandle | None = None
        self._young: dict[str, tuple[float, list[Tell]]] = {}
        self._growing = False
        self._careful: set[str] = set()
        self._own = dict(os.environ)
        self._accounts = Accounts(machine.calls.pool.task_users)
        machine.accounts = self._accounts.describe()
        ways = TreeWays(self._laid, self._queue_run, self._supervised_late)
        self._trees = TreeDesk(self._accounts, ways, machine.prewarming)
        self._look = asyncio.Event()
        self._paced = asyncio.Event()
        self._unshipped: set[str] = set()
        self._work = str(home / "work")
        os.makedirs(self._work, exist_ok=True)
        self._sessions: TaskSessions | None = None
        self._runners: Runners | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._looked = 0.0
        self._trials: set[asyncio.Task[None]] = set()
        self._told_reason = ""
        self.checking = Checking(machine.health, self.carry_out, lambda: machine.address)
        self.link.pull_from(self._pull)
        self._decided: dict[str, Callable[[Any, int], list[Effect]]] = {
            "job_assign": machine.assigned,
            "job_go": machine.go,
            "job_cancel": machine.cancelled,
            "job_resume": machine.resumed,
            "prewarm_hint": self._trees.hinted,
        }
        ports = Ports(lambda: machine.running)
        execs = Execs(str(home), lambda: machine.running)
        openers: Openers = {PortTarget: ports.open, ExecTarget: execs.open, AttachTarget: execs.attach}
        self._tunnels = Tunnels(lambda: self.link.hub, openers)

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Let tasks speak through their sessions; where that cannot be, they run without."""
        try:
            session_home = SessionHome(self._home, self._accounts)
            sessions = TaskSessions(session_home, self)
            await sessions.start()
            self._sessions = sessions
            await self._host_runners(session_home)
        except OSError as fault:
            logger.error("tasks get no session, the socket for it could not be made: %s", fault)

    async def _host_runners(self, session_home: SessionHome) -> None:
        near = "" if self._config.hub else str(self._config.home / "blobs")
        home = RunnerHome(self._home, session_home, near)
        blobs = Blobs(home.blobs, home.near, self._config.blob_cache_bytes, lambda: self.link.hub)
        await do_aside(blobs.scan)
        cap_bytes = self._config.output_bytes
        runners = Runners(home, self._machine, blobs, self, self._own, self._work, cap_bytes)
        await runners.lines.start()
        self._runners = runners
        await self._trees.open(home.blobs.parent, blobs, self._config.snapshot_cache_bytes)

    def stop_listening(self) -> None:
        """Let tasks know at once that this agent is gone; they look for the next. Runners and tunnels end."""
        self._tunnels.close()
        if self._sessions is not None:
            self._sessions.close()
        self._trees.close()
        if self._runners is not None:
            self._runners.close()

    async def dismiss_supervisor(self) -> None:
        """It goes on for as long as tasks run, and no longer."""
        if self._supervisor is not None:
            self._supervisor.send({"op": "leave"})
            await self._supervisor.close()

    async def drain(self) -> None:
        """Give back what lanes hold, since their runners end with this agent; and see the hub take it."""
        self.carry_out(self._machine.calls.drain(_now_ms()))
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + DRAIN_S
        while self._has_lanes() and loop.time() < ends_at:  # noqa: ASYNC110 - many have a part in it, any may fail
            await asyncio.sleep(0.01)

    def _has_lanes(self) -> bool:
        return self._machine.registered and bool(self._machine.calls.describe_active())

    def task_greeted(self, uid: str) -> dict[str, Any]:
        """A task opened its session."""
        return self._machine.greeted(uid, _now_ms())

    def task_said(self, uid: str, words: Words) -> None:
        """A task said something through its session."""
        self.carry_out(self._machine.task_said(uid, words, _now_ms()))

    def follow_call(self, lane: str, index: int, task_id: str, place: Place, ended: bool) -> None:
        """A call has printed something."""
        self._shipper.follow_call(lane, index, task_id, place, ended)
        self._look.set()

    def ships_from(self, folder: str) -> bool:
        """Whether anything below a folder is still on its way to the hub."""
        return self._shipper.ships_from(folder)

    def own_variables(self, lane: str, token: str, account: Account, uses: Sequence[str]) -> dict[str, str]:
        """What calls of a lane find in their environment beside the job's: their session, and how to reach the hub."""
        variables = {"DRAY_IN_CALL": "1", "DRAY_ATTEMPT_UID": lane, "DRAY_TOKEN": token}
        if self._sessions is not None:
            variables |= self._sessions.variables(lane, account)
        return variables | self.link.variables() | self.link.name_services(uses, token)

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
            async for told in self._supervisor.events():
                event = told if self._runners is None else self._runners.annotate(told)
                if event is None:
                    continue
                quote_failed(event, self._attempts, self._machine.running, self.cards.testify)
                self._trees.clear_away(event)
                if event.get("ev") == "state":
                    self.carry_out(self._machine.attached(event, _now_ms()))
                    self._report_all()
                    attached.set()
                elif event.get("ev") == "error":
                    logger.warning("the supervisor could not do something: %s", event.get("error"))
                else:
                    self.carry_out(self._machine.supervised(event, _now_ms()))
            logger.error("the supervisor is gone: starting another, its tasks are reported lost")
            self.carry_out(self._machine.supervisor_gone(_now_ms()))
            await self._reattach()

    async def _reattach(self) -> None:
        delay_s = REATTACH_S
        while True:
            try:
                await self.attach()
            except (SupervisorError, OSError) as fault:
                logger.error("no supervisor could be started, next try in %g s: %s", delay_s, fault)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, REATTACH_MAX_S)
            else:
                return

    def _try_start(self, probe: Probe) -> None:
        task = asyncio.ensure_future(self._make_trial(probe))
        self._trials.add(task)
        task.add_done_callback(self._trials.discard)

    async def _make_trial(self, probe: Probe) -> None:
        """Try the folders in a thread, since a disk may hang; then a process."""
        fault = await self._runners.mend() if self._runners is not None else ""
        folders = [str(self._home), self._work]
        if self._runners is not None:
            folders.append(str(self._runners.home.runners))
        try:
            fault = fault or await asyncio.to_thread(try_folders, folders)
        except RuntimeError as error:
            fault = f"no thread can be started: {error}"
        if fault:
            self.carry_out(self._machine.probe_failed(fault, _now_ms()))
        else:
            account = self._accounts.all[0]
            self._queue_run(make_trial(probe, account.work_folder(self._work), account.name))

    def _note_readiness(self) -> None:
        """Say in the log when this worker stops being able to start work, and when it can again."""
        reason = self._machine.readiness.reason
        if reason and reason != self._told_reason:
            logger.error("not ready: %s", reason)
        elif self._told_reason and not reason:
            logger.warning("ready again")
        self._told_reason = reason

    def _report_all(self) -> None:
        """After a new supervisor: what ended with the old one is told in the running session."""
        if self._machine.registered:
            self.carry_out(self._machine.report(_now_ms()))

    # --- the hub ------------------------------------------------------------------------------------------------------

    def _hub_said(self, kind: str, body: Any, error: str) -> None:
        machine = self._machine
        if kind == "calls_assign":
            if body.spec is not None and is_careful(body.spec):
                self._careful.add(body.lane)
            self.carry_out(machine.calls_assigned(body, _now_ms()))
        elif kind == "calls_ack":
            for _ in body.seq:
                self.link.answered()
            self.carry_out(machine.calls_acked(body, _now_ms()))
        elif kind == "ack":
            self.link.answered()
            self.link.lead_at(body.leader)
            if body.heartbeat_s and body.heartbeat_s != self.link.heartbeat_s:
                self.link.heartbeat_s = body.heartbeat_s
                self._paced.set()
            if body.log_offsets:
                self._shipper.received(body.log_offsets)
                self._release_shipped()
            if body.re == "register":
                for note in body.notes:
                    logger.warning("%s (task_users of [worker] gives each user an account)", note)
                # What was read while no session could carry it is read again.
                self._shipper.rewind()
                self._shipper.retain(known_to_hub(body) | self._unshipped)
            self.carry_out(machine.acked(body, _now_ms()))
            if body.re == "register":
                self._look.set()
        elif kind in self._decided:
            self.carry_out(self._decided[kind](body, _now_ms()))
        elif kind == "tunnel_dial":
            self.link.lead_at(body.leader)
            self._tunnels.dial(body.ticket)
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
        hello = self._machine.registration(_now_ms())
        return hello | {"features": [*hello["features"], *FEATURES]}

    async def session_over(self) -> None:
        """The socket is gone; what runs goes on."""
        self._machine.disconnected()
        self._young.clear()
        self._shipper.rewind()

    async def beat(self) -> None:
        """Heartbeats while a session lasts, from the moment at which the hub has named a pace in that pace."""
        while True:
            self._paced.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self.link.heartbeat_s * (0.9 + 0.2 * (time.monotonic_ns() % 1000) / 1000)
                ):
                    await self._paced.wait()
                    continue
            if self._machine.registered:
                self.carry_out([self._machine.heartbeat(_now_ms())])

    async def resend(self) -> None:
        """Send results again until the hub has them."""
        while True:
            await asyncio.sleep(0.5)
            self.carry_out(self._machine.resend(_now_ms()))
            self._note_readiness()

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

    def carry_out(self, effects: list[Effect]) -> None:
        """Do what the machine asks for; what calls have brought meanwhile leaves when the link has room."""
        for effect in effects:
            if isinstance(effect, (FeedRunner, BindRunner, LetGo, Recall, Nudge, Prefetch)):
                if self._runners is not None:
                    self._runners.carry_out(effect)
            elif isinstance(effect, Tell):
                self._tell(effect)
            elif isinstance(effect, StartRunner):
                self._start_runner(effect)
            elif isinstance(effect, Grant):
                if self._sessions is not None:
                    self._sessions.grant(effect.uid)
            elif isinstance(effect, Launch):
                self._launch(effect)
            elif isinstance(effect, Lay):
                self._trees.lay(effect)
            elif isinstance(effect, Probe):
                self._try_start(effect)
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
        if self._machine.calls.results.waiting:
            self.link.wake()
        if self._machine.health.fresh:
            self.checking.wake()
        if self._tick is None and self._machine.busy:
            quiet = self._machine.calls.is_quiet(_now_ms())
            delay_s = QUIET_TICK_S if quiet else TICK_S
            self._tick = asyncio.get_running_loop().call_later(delay_s, self._tick_over)

    def _tick_over(self) -> None:
        self._tick = None
        loop = asyncio.get_running_loop()
        if self._runners is not None and loop.time() - self._looked >= LIVE_S:
            self._looked = loop.time()
            self._runners.look_live()
        self.carry_out(self._machine.tick(_now_ms()))

    def _pull(self) -> list[Tell]:
        """Ends of calls for a frame that can leave now; they make the first words of their lanes needless."""
        pulled = self._machine.pull(_now_ms())
        for told in pulled:
            self._young.pop(told.payload["lane"], None)
        return pulled

    def _start_runner(self, effect: StartRunner) -> None:
        """Runners wait for nothing in their start: they go to the supervisor with the tasks of this moment."""
        if self._runners is None:
            return
        try:
            task = self._runners.make_task(effect)
        except OSError as fault:
            self._runners.forget(effect.uid)
            refusal = {
                "ev": "refused",
                "uid": effect.uid,
                "error": f"no folder for a runner: {fault}",
                "host": True,
            }
            asyncio.get_running_loop().call_soon(self._supervised_late, refusal)
            return
        self._queue_run(task)

    def _supervised_late(self, event: dict[str, Any]) -> None:
        self.carry_out(self._machine.supervised(event, _now_ms()))

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
        if message.type in ("job_progress", "service_health"):
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
        account = self._accounts.of(launch.spec.user_id)
        if account is None:
            self._refuse(launch)
            return
        lease = self._machine.leases.take(self._machine.running, launch, is_free)
        if lease.fault:
            refusal = {"ev": "refused", "uid": launch.uid, "error": lease.fault, "elsewhere": True}
            asyncio.get_running_loop().call_soon(self._supervised_late, refusal)
            return
        own = self._own | account.variables()
        environment = build_environment(launch, self._machine.name, own, self._machine.devices)
        environment |= variables_of(launch, lease.ports) | self.link.name_services(
            launch.spec.uses, launch.token
        )
        if self._sessions is not None:
            environment |= self._sessions.variables(launch.uid, account)
        work, places = account.work_folder(self._work), self._trees.places(launch)
        task = build_task(launch, environment, work, account.name, *places)
        if lease.ports:
            task["meta"]["ports"] = lease.ports
        if launch.gang is not None:
            task["meta"]["gang"] = gang_meta(launch.gang)
        if self._trees.keeps(launch, task):
            return
        if launch.gang is not None or "tree" in task["meta"]:
            self._supervise({"op": "prepare", "tasks": [task]})
        else:
            self._queue_run(task)

    def _laid(self, uid: str, fault: str, ours: bool) -> None:
        self.carry_out(self._machine.laid(uid, fault, ours))

    def _refuse(self, launch: Launch) -> None:
        """End what has no account to run in here: as if it had been started, since its result is told alike."""
        exit_class, error = tell_no_account(launch.spec.user_id)
        result = {
            "uid": launch.uid,
            "state": "failed",
            "exit_code": -1,
            "signal": 0,
            "exit_class": exit_class,
        }
        item = {**result, "error": error, "usage": {}, "out": {}}
        event = {"ev": "exited", "items": [item]}
        asyncio.get_running_loop().call_soon(self._supervised_late, event)

    def _queue_run(self, task: dict[str, Any]) -> None:
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
