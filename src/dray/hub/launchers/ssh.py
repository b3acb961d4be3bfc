"""Workers on machines that are reached by ssh, one on each: an agent is left there in a session of its own.

What is run there is a script on the standard input of `sh`. The home of an agent lies in the machine's temporary folder
and holds its process id; a machine is listed by what is alive of those.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator

from dray.core.model.policies.launching import Launch
from dray.hub.launchers.base import PREFIX, Machine, Order, SiteFault
from dray.hub.launchers.commands import run
from dray.hub.launchers.slurm import is_of

_LIST = (
    f'for each in "${{TMPDIR:-/tmp}}"/{PREFIX}*/agent.pid; do\n'
    '  [ -f "$each" ] && kill -0 "$(cat "$each")" 2>/dev/null && basename "$(dirname "$each")"\n'
    "done\ntrue\n"
)


class Ssh:
    """One launcher's machines."""

    def __init__(self, name: str, launch: Launch) -> None:
        assert launch.ssh is not None
        self._name, self._launch, self._site = name, launch, launch.ssh
        # Between choosing a host and seeing an agent there nobody else may choose it.
        self._choosing = asyncio.Lock()
        self._chosen: dict[str, str] = {}

    async def start(self, order: Order) -> str:
        async with self._choosing:
            listed = await self._look()
            taken = {machine.handle for machine in listed or ()} | set(self._chosen.values())
            free = [host for host in self._site.hosts if host not in taken]
            if not free:
                raise SiteFault("each of its hosts has a worker already, or does not answer")
            host = self._chosen[order.id] = free[0]
        try:
            await self._ask(host, start_script(order))
        finally:
            self._chosen.pop(order.id, None)
        return host

    async def end(self, launch_id: str, handle: str) -> None:
        if not handle:
            found = [one.handle for one in await self._look() if one.id == launch_id]
            handle = found[0] if found else ""
        if handle in self._site.hosts:
            await self._ask(handle, end_script(launch_id))

    async def machines(self) -> list[Machine] | None:
        return await self._look()

    async def _look(self) -> list[Machine]:
        answers = await asyncio.gather(*(self._list_one(host) for host in self._site.hosts))
        return [machine for found in answers for machine in found]

    async def _list_one(self, host: str) -> list[Machine]:
        said = await self._ask(host, _LIST)
        return list(read_names(said, host, self._name))

    async def _ask(self, host: str, script: str) -> str:
        argv = ["ssh", "-o", "BatchMode=yes", *self._site.args, "--", host, "sh -s"]
        return await run(argv, self._launch.command_s, script)


def start_script(order: Order) -> str:
    """Leave an agent running, if none of this launch runs there yet."""
    return (
        f'export DRAY_HOME="${{TMPDIR:-/tmp}}/{PREFIX}{order.id}"\n'
        'umask 077 && mkdir -p "$DRAY_HOME" || exit 1\n'
        'pid="$DRAY_HOME/agent.pid"\n'
        '[ -f "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null && exit 0\n'
        f"command -v {shlex.quote(order.join[0])} >/dev/null || {{ echo 'there is no dray' >&2; exit 1; }}\n"
        f'nohup setsid {shlex.join(order.join)} </dev/null >"$DRAY_HOME/agent.log" 2>&1 &\n'
        'echo $! >"$pid"\n'
    )


def end_script(launch_id: str) -> str:
    """Ask the agent to end, and leave nothing behind once it has."""
    return (
        f'home="${{TMPDIR:-/tmp}}/{PREFIX}{launch_id}"\n'
        '[ -f "$home/agent.pid" ] || exit 0\n'
        'kill "$(cat "$home/agent.pid")" 2>/dev/null\n'
        'for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$(cat "$home/agent.pid")" 2>/dev/null || break; sleep 1; done\n'
        'kill -0 "$(cat "$home/agent.pid")" 2>/dev/null || rm -rf "$home"\n'
        "true\n"
    )


def read_names(said: str, host: str, launcher: str) -> Iterator[Machine]:
    """The agents of a launcher that a machine says are alive there."""
    for name in said.split():
        if is_of(name, launcher):
            yield Machine(name.removeprefix(PREFIX), host, "runs")
