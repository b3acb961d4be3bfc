"""Processes beside tasks, and terminals of tasks: for the owner of a task and for admins, each on record with its
command.

Who shares a service shares what it serves, and not the machine that it runs on: nobody else gets here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.errors import InvalidInput, NotFound
from dray.hub.access.caller import Caller
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord
from dray.hub.tunnels.places import Place, find_running
from dray.hub.tunnels.reaching import Reacher, Standing
from dray.wire.streams.frames import AttachTarget, ExecTarget, Target, TaskTarget

MOST_WRITTEN = 1000
EXEC_SCOPES = ("submit",)


class Execs:
    """One hub's."""

    def __init__(self, engine: Callable[[], Engine], reacher: Reacher) -> None:
        self._engine, self._reacher = engine, reacher

    async def begin(self, caller: Caller, asked: TaskTarget) -> Standing:
        """Start a process beside a task; without a command, go to the terminal of the task itself."""
        # The way here is open to who may only reach services, too.
        caller.check(EXEC_SCOPES)
        job, place = self._find(caller, asked.name)
        target: Target = AttachTarget(place.attempt, asked.rows, asked.columns)
        if asked.command:
            target = ExecTarget(
                place.attempt, asked.command, asked.env, asked.terminal, asked.rows, asked.columns
            )
        await self._note(caller, job, place, asked.command)
        return await self._reacher.stand(place, target)

    def _find(self, caller: Caller, name: str) -> tuple[Job, Place]:
        state = self._engine().state
        try:
            job, attempt = find_running(state, caller, name)
        except NotFound:
            raise NotFound(f"no task {name!r} of yours runs: `dray ps` lists what does") from None
        if job.calls:
            raise InvalidInput(
                f"{name} is a call of a function: calls of many jobs share a process, which is no place for others"
            )
        return job, Place(state.spell(attempt), attempt.worker, attempt.uid, 0, job.id)

    async def _note(self, caller: Caller, job: Job, place: Place, command: list[str]) -> None:
        """Write down who runs what where, before it is run."""
        action = "exec" if command else "attach"
        words = shlex.join(command)[:MOST_WRITTEN]
        detail = f"of {job.user}, on {place.worker}{f': {words}' if command else ''}"

        def decide(state: State, clock: Clock) -> Decision:
            record = AuditRecord(clock.at_ms, caller.user, caller.token_id, action, place.task, detail)
            return Decision(audit=(record,))

        await self._engine().change(decide)
