"""Fixtures: a real supervisor process per test, talked to over its real socket."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dray.agent.supervisor.client import SupervisorClient
from dray.agent.supervisor.processes.cgroup import Groups
from dray.agent.supervisor.processes.output import read_output
from dray.agent.supervisor.records.owned_files import Place

Event = dict[str, Any]
DEADLINE_S = 60.0


class Rig:
    """One home, one client at a time, and the events seen so far."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.options: list[str] = []
        self.seen: list[Event] = []
        self.state: Event = {}
        self._client: SupervisorClient | None = None
        self._events: AsyncIterator[Event] | None = None

    @staticmethod
    async def wait_until(condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"still not so: {what}"
            await asyncio.sleep(0.01)

    @staticmethod
    def is_alive(pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rsplit(")", 1)[1].split()[0] not in "ZX"

    async def open(self) -> Event:
        """Attach anew and return the state the supervisor tells."""
        await self.close()
        self._client = await SupervisorClient.open(self.home, options=self.options)
        self._events = self._client.events()
        self.seen = []
        self.send({"op": "hello"})
        self.state = await self.next("state")
        return self.state

    @property
    def client(self) -> SupervisorClient:
        assert self._client is not None
        return self._client

    @property
    def pid(self) -> int:
        return int(self.state["pid"])

    def send(self, message: Event) -> None:
        self.client.send(message)

    async def next(self, kind: str) -> Event:
        return await self.next_of(kind)

    async def next_of(self, *kinds: str) -> Event:
        """The next event of these kinds; the others on the way are kept in `seen`."""
        assert self._events is not None
        async with asyncio.timeout(DEADLINE_S):
            async for event in self._events:
                self.seen.append(event)
                if event["ev"] in kinds:
                    return event
        raise AssertionError(f"connection ended before {kinds}: {self.seen}")

    async def ends(self) -> None:
        """Read until the supervisor closes the connection."""
        assert self._events is not None
        async with asyncio.timeout(DEADLINE_S):
            async for event in self._events:
                self.seen.append(event)

    def task(self, uid: str, *argv: str, **fields: Any) -> Event:
        env = {"PATH": os.environ["PATH"]}
        return {"uid": uid, "task_id": f"job-{uid}", "argv": list(argv), "env": env, "grace_s": 5.0, **fields}

    def run(self, *tasks: Event) -> None:
        self.send({"op": "run", "tasks": list(tasks)})

    def cancel(self, uid: str, reason: str, grace_s: float) -> None:
        self.send({"op": "cancel", "uid": uid, "reason": reason, "grace_s": grace_s})

    async def exits(self, *uids: str) -> dict[str, Event]:
        """The exits of these attempts, seen already or still to come."""
        while True:
            found = {
                item["uid"]: item for event in self.seen if event["ev"] == "exited" for item in event["items"]
            }
            if all(uid in found for uid in uids):
                return found
            await self.next("exited")

    async def exit_of(self, uid: str) -> Event:
        return (await self.exits(uid))[uid]

    async def result(self, uid: str, *argv: str, **fields: Any) -> Event:
        self.run(self.task(uid, *argv, **fields))
        return await self.exit_of(uid)

    def output(self, uid: str, stream: str = "stdout") -> bytes:
        data, offset, _ = read_output(Place(str(self.home / "attempts" / uid)), stream, 0, 1 << 30)
        assert offset == 0
        return data

    async def await_output(self, uid: str, text: bytes) -> None:
        await self.wait_until(lambda: text in self.output(uid), f"{uid} prints {text!r}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = self._events = None

    async def kill_supervisor(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        await self.ends()
        await self.wait_until(lambda: not self.is_alive(self.pid), "the supervisor is dead")
        await self.close()

    def records(self) -> list[Event]:
        lines = (self.home / "journal").read_bytes().splitlines()
        return [json.loads(line[9:]) for line in lines]

    async def stop(self) -> None:
        """End the supervisor and all that it runs, whatever the test left."""
        state = await self.open()
        running = [item["uid"] for item in state["attempts"] if item["phase"] != "exited"]
        for uid in running:
            self.cancel(uid, "user", 0.0)
        await self.exits(*running)
        self.send({"op": "stop"})
        await self.ends()
        await self.close()
        await self.wait_until(lambda: not self.is_alive(self.pid), "the supervisor is gone")


@pytest.fixture
async def make_rig() -> AsyncIterator[Callable[..., Rig]]:
    """Makes rigs, not yet opened, in a folder with a short path: unix sockets have short names and tmp_path is long."""
    directory = Path(tempfile.mkdtemp(prefix="dray-t-"))
    made: list[Rig] = []

    def make(home: Path | None = None) -> Rig:
        made.append(Rig(home or directory / "home"))
        return made[-1]

    yield make
    for home in {rig.home: rig for rig in made}.values():
        await home.stop()
    for rig in made:
        await rig.close()
    shutil.rmtree(directory)


@pytest.fixture
async def rig(make_rig: Callable[..., Rig], request: pytest.FixtureRequest) -> Rig:
    """An open rig. Asked for "behind a barrier" it holds a lease, so that nothing is started at once."""
    rig = make_rig()
    await rig.open()
    if getattr(request, "param", "at once") == "behind a barrier":
        rig.run(rig.task("keeper", "sleep", "1000", lease_s=1000.0))
        await rig.next("started")
        rig.seen.clear()
    return rig


@pytest.fixture
def memory_groups() -> None:
    groups = Groups("probe")
    probe = groups.create("probe", 64 << 20)
    if probe is None:
        pytest.skip(f"no memory control group may be made here: {groups.why_not}")
    probe.remove()
    os.rmdir(os.path.dirname(probe.path))
