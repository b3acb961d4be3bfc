"""Checks of services as `decide.health` wants them: made side by side, each in its time, their answers brought back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable

from dray.agent.decide.effects import Effect
from dray.agent.decide.health import Health, Question
from dray.agent.supervisor.records.owned_files import ANYBODY
from dray.agent.tasks.accounts import Account
from dray.agent.tasks.aside import do_aside
from dray.agent.tasks.listeners import find_thief
from dray.agent.tasks.probes import Beside, ask_port, run_command

logger = logging.getLogger("dray.agent")


class Checking:
    """`address`: where others reach this machine; who listens there alone is asked there."""

    def __init__(
        self, health: Health, carry_out: Callable[[list[Effect]], None], address: Callable[[], str]
    ) -> None:
        self._health, self._carry_out, self._address = health, carry_out, address
        self._woken = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """There may be something to ask earlier than was thought."""
        self._woken.set()

    async def run(self) -> None:
        """Ask what is due, for as long as this agent lives."""
        try:
            while True:
                self._woken.clear()
                for question in self._health.due(_now_ms()):
                    task = asyncio.ensure_future(self._ask(question))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
                wait_ms = self._health.wait_ms(_now_ms())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                        await self._woken.wait()
        finally:
            for task in self._asking:
                task.cancel()

    async def _ask(self, question: Question) -> None:
        check = question.check
        if check.command:
            fault = await self._run(question)
        else:
            fault = await ask_port(check, question.port, self._address())
            if not fault and question.first and await self._is_stolen(question):
                return
        self._carry_out(self._health.answered(question, fault, _now_ms()))
        self.wake()

    async def _run(self, question: Question) -> str:
        try:
            beside = read_beside(question.pid)
        except OSError as error:
            return f"the environment of the task cannot be read: {error.strerror}"
        return await run_command(question.check, beside)

    async def _is_stolen(self, question: Question) -> bool:
        """Whoever answers first need not be the task: a program may have taken its port before it did."""
        thief = await do_aside(find_thief, question.port, question.pid, question.uid)
        if thief:
            logger.warning("port %d of attempt %s is listened on by %s", question.port, question.uid, thief)
            self._carry_out(self._health.stolen(question.uid))
            self.wake()
        return bool(thief)


def read_beside(pid: int) -> Beside:
    """What a task's first process was started with; raises OSError where it is gone, or that is not ours to read."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        words = [os.fsdecode(word).partition("=") for word in file.read().split(b"\0") if b"=" in word]
    status = os.stat(f"/proc/{pid}")
    foreign = status.st_uid != os.geteuid()
    account = Account("", status.st_uid if foreign else ANYBODY, status.st_gid if foreign else ANYBODY)
    return Beside({name: value for name, _, value in words}, os.readlink(f"/proc/{pid}/cwd"), account, pid)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
