"""Workers by any command of the site: one that starts a machine, one that ends it, one that lists them if it can.

The start command's first line of output is the handle. A `list` command prints a line for each machine, its launch's id
first, then its handle, then whatever it says. Without one a hub that comes back cannot know, and waits.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dray.core.model.policies.launching import Launch, fill
from dray.hub.launchers.base import Machine, Order, SiteFault
from dray.hub.launchers.commands import run

MOST_HANDLE = 256


class OwnCommand:
    """One launcher's commands."""

    def __init__(self, name: str, launch: Launch) -> None:
        self._name, self._launch = name, launch

    async def start(self, order: Order) -> str:
        join = shlex.join(order.join)
        values = self._values(order.id, "") | {"join": join}
        env = {"DRAY_JOIN": join, "DRAY_LAUNCH": order.id, "DRAY_LAUNCHER": self._name}
        said = await run(fill(self._launch.command, values), self._launch.command_s, order.script, env)
        return (said.strip().splitlines() or [""])[0].strip()[:MOST_HANDLE]

    async def end(self, launch_id: str, handle: str) -> None:
        if not handle and any("{handle}" in word for word in self._launch.end):
            raise SiteFault("its command gave no handle, so that there is nothing to end it by")
        await run(fill(self._launch.end, self._values(launch_id, handle)), self._launch.command_s)

    async def machines(self) -> list[Machine] | None:
        if not self._launch.list:
            return None
        said = await run(fill(self._launch.list, self._values("", "")), self._launch.command_s)
        return list(read_machines(said))

    def _values(self, launch_id: str, handle: str) -> dict[str, str]:
        life_s = f"{self._launch.life_s:g}"
        return {"id": launch_id, "launcher": self._name, "handle": handle, "life_s": life_s}


def read_machines(said: str) -> Iterator[Machine]:
    """Lines of ID, HANDLE and words."""
    for line in said.splitlines():
        parts = line.split(None, 2)
        if parts:
            yield Machine(parts[0], parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 2 else "")
