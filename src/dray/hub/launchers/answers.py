"""What the hub answers about launches, and what admins may say of them: start some more, let one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.state.events import Clock, Event, WorkerDrained
from dray.core.lifecycle.state.service_events import LaunchAsked, LaunchMoved
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.launches.decide import allowance, next_id, why_not
from dray.errors import Conflict, InvalidInput, NotFound
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.hub.documents.records import Document
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.launchers.base import Machine
from dray.hub.launchers.desk import LaunchDesk
from dray.hub.launchers.documents import launch_document, launcher_document, launcher_names
from dray.hub.store.base import AuditRecord
from dray.hub.workers.owners import Owners

MOST = 64
Strangers = Callable[[], dict[str, list[Machine]]]
Decide = Callable[[State, Clock], Decision]


def make_launches(engine: Engine, tokens: Tokens, owners: Owners) -> tuple[LaunchDesk, LaunchAnswers]:
    """What carries launches out, and what answers for them."""
    # How machines join is only known once the hub listens.
    desk = LaunchDesk(engine, tokens, lambda token: owners.tell_join(token))  # noqa: PLW0108 - as it is said then
    return desk, LaunchAnswers(engine, lambda: desk.strangers)


class LaunchAnswers:
    """One hub's answers about its launches."""

    def __init__(self, engine: Engine, strangers: Strangers) -> None:
        self._engine, self._strangers = engine, strangers

    async def list(self, caller: Caller, launcher: str, everything: bool) -> Document:
        """Launchers, and their launches; of those that are over only where all are asked for."""

        def look(state: State) -> Document:
            names = launcher_names(state)
            if launcher and launcher not in names:
                raise _no_launcher(state, launcher)
            names = [launcher] if launcher else names
            known = [
                launch_document(state, launch_id, record)
                for name in names
                for launch_id, record in launches.of_launcher(state, name)
                if everything or record.state not in launches.OVER
            ]
            strange = self._strangers()
            return {
                "launchers": [launcher_document(state, name) for name in names],
                "launches": known,
                "strangers": [
                    {"launcher": name, "id": one.id, "handle": one.handle, "said": one.said}
                    for name in names
                    for one in strange.get(name, ())
                ],
            }

        return await self._engine.ask(look)

    async def show(self, caller: Caller, launch_id: str) -> Document:
        def look(state: State) -> Document:
            return launch_document(state, launch_id, _find(state, launch_id))

        return await self._engine.ask(look)

    async def start(self, caller: Caller, launcher: str, count: int) -> Document:
        answer: Document = await self._engine.change(
            _start(caller, launcher, count), who=caller.user, body=launcher, kind="launch"
        )
        return answer

    async def stop(self, caller: Caller, launch_id: str) -> Document:
        answer: Document = await self._engine.change(
            _stop(caller, launch_id), who=caller.user, body=launch_id, kind="launch"
        )
        return answer


def _no_launcher(state: State, name: str) -> NotFound:
    known = ", ".join(launcher_names(state)) or "none: give a provider of the policy a `launch`"
    return NotFound(f"there is no launcher {name[:64]!r}: there is {known}")


def _find(state: State, launch_id: str) -> Any:
    record = launches.find(state, launch_id)
    if record is None:
        raise NotFound(f"there is no launch {launch_id[:128]!r}: see `dray launch ls --all`")
    return record


def _audit(caller: Caller, clock: Clock, action: str, whom: str, detail: str) -> AuditRecord:
    return AuditRecord(clock.at_ms, caller.user, caller.token_id, action, whom, detail)


def _start(caller: Caller, name: str, count: int) -> Decide:
    """Ask for so many workers, whoever waits; within what the launcher may."""
    if not 0 < count <= MOST:
        raise InvalidInput(f"1 to {MOST} workers can be started at once, not {count}")

    def decide(state: State, clock: Clock) -> Decision:
        launch = launches.launch_of(state, name)
        if launch is None:
            raise _no_launcher(state, name)
        free = allowance(state, name, launch)
        if free < count:
            why = why_not(state, name, launch) or f"{free} more may be started now"
            raise Conflict(f"{name} starts no {count} workers now: {why}")
        made: list[str] = []

        def ask() -> Iterable[Event]:
            for _ in range(count):
                # Each is folded in before the next number is drawn.
                made.append(next_id(state, name))
                yield LaunchAsked(made[-1], name, f"by {caller.user}", user=caller.user)

        def answer(after: State) -> Document:
            return {"launches": [launch_document(after, one, _find(after, one)) for one in made]}

        return Decision(ask(), answer, (_audit(caller, clock, "launch.ask", name, f"{count}"),))

    return decide


def _stop(caller: Caller, launch_id: str) -> Decide:
    """Let a launch go: at once before anybody joined, else by a drain, so that what runs there ends first."""

    def decide(state: State, clock: Clock) -> Decision:
        record = _find(state, launch_id)
        why = f"stopped by {caller.user}"
        answer = lambda after: launch_document(after, launch_id, _find(after, launch_id))  # noqa: E731 - used twice
        events: list[Event] = []
        if record.state in launches.COMING:
            events = [LaunchMoved(launch_id, launches.ENDING, why, user=caller.user)]
        elif record.state == launches.JOINED:
            events = [LaunchMoved(launch_id, launches.DRAINING, why, user=caller.user)]
            if launch_id in state.workers:
                events.append(WorkerDrained(launch_id, True, caller.user, f"its launch ends: {why}"))
        if not events:
            return Decision(answer=answer)
        return Decision(events, answer, (_audit(caller, clock, "launch.stop", launch_id, record.launcher),))

    return decide
