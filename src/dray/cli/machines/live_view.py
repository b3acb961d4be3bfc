"""`dray up` in the foreground: watch over hub and agent, show what goes on, stop both on Ctrl-C.

On a terminal a view that is redrawn; elsewhere the daemons' own log lines and nothing more.
"""

from __future__ import annotations

import collections
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dray.cli.base.hub import Hub
from dray.cli.base.outage import say
from dray.cli.follow.following import read_events
from dray.cli.jobs.job_views import draw_event
from dray.cli.machines.daemons import end_child, read_tail
from dray.cli.machines.up_and_down import list_running, tell_jobs
from dray.cli.machines.views import draw_workers
from dray.config import ClientConfig
from dray.errors import DrayError

if TYPE_CHECKING:
    from rich.console import Group

_REFRESH_S = 1.0
_EVENTS = 8
_POLL_S = 0.1
Process = subprocess.Popen[bytes]


def watch_over(home: Path, url: str, hub: Process, agent: Process) -> int:
    """Stay until Ctrl-C, SIGTERM, or the end of either daemon; then stop what is left."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    ended = ""
    try:
        if sys.stderr.isatty():
            ended = _show(home, url, hub, agent)
        else:
            say(f"ready: {url} (Ctrl-C stops hub and worker)")
            while not (ended := _find_ended(home, hub, agent)):
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        pass
    still = list_running(home)
    if ended:
        say(ended)
    return _stop_both(hub, agent, still) or (1 if ended else 0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _find_ended(home: Path, hub: Process, agent: Process) -> str:
    for name, role, process in (("hub", "hub", hub), ("worker", "agent", agent)):
        if process.poll() is not None:
            return f"the {name} ended (exit code {process.returncode}){read_tail(home, role)}"
    return ""


def _stop_both(hub: Process, agent: Process, still: list[str]) -> int:
    say("stopping the worker and the hub; Ctrl-C again leaves them to end by themselves")
    code = 0
    try:
        # The agent first, so that the hub hears its goodbye.
        for name, process in (("worker", agent), ("hub", hub)):
            if process.poll() is None and not end_child(process):
                say(f"the {name} (process {process.pid}) has not ended yet: `dray down` asks again")
                code = 1
    except KeyboardInterrupt:
        say("left: they have been asked to stop")
        return 130
    if still:
        say(f"still running: {tell_jobs(still)}; `dray up` takes them up again")
    return code


class _Events(threading.Thread):
    """The newest events, collected beside the view."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(daemon=True)
        self._hub = hub
        self.lines: collections.deque[str] = collections.deque(maxlen=_EVENTS)

    def run(self) -> None:
        last = ""
        while True:
            with contextlib.suppress(DrayError, ValueError):
                headers = {"Last-Event-ID": last} if last else {}
                with self._hub.stream("/events", None, headers) as stream:
                    for event_id, data in read_events(stream.chunks()):
                        last = event_id or last
                        self.lines.append(draw_event(json.loads(data)))
            time.sleep(_REFRESH_S)


def _show(home: Path, url: str, hub: Process, agent: Process) -> str:
    from rich.console import Console
    from rich.live import Live

    client = Hub(ClientConfig(home=home, timeout_s=5.0))
    events = _Events(client)
    events.start()
    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not (ended := _find_ended(home, hub, agent)):
            live.update(_draw(client, url, events, console.width), refresh=True)
            time.sleep(_REFRESH_S)
    return ended


def _draw(client: Hub, url: str, events: _Events, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    try:
        workers = client.get("/workers").get("workers") or []
        queues = client.get("/queues").get("queues") or []
    except DrayError as error:
        return Group(Text(f"hub      {url}"), Text(error.message, style="yellow"))
    waiting, running = (sum(_count(queue, name) for queue in queues) for name in ("waiting", "running"))
    parts = [
        Text.assemble(("hub      ", "dim"), (url, "bold"), f"   {running} running, {waiting} waiting"),
        Text(""),
        Text.from_ansi(draw_workers(workers, width) if workers else "no worker yet"),
        Text(""),
        *(Text(line, overflow="ellipsis", no_wrap=True) for line in events.lines),
        Text("Ctrl-C stops hub and worker; tasks go on. Try: dray run -- COMMAND", style="dim"),
    ]
    return Group(*parts)


def _count(queue: Any, name: str) -> int:
    value = queue.get(name, 0)
    return value if isinstance(value, int) else 0
