"""How long a site of two hubs is without a leader: from the fault until the other one says that it leads.

The leader is killed, stopped, cut off from the database, asked to resign, told to end. The lease is that of a hub by
itself: 3 s. `./dev soak --hubs` does the same under load, and looks for what is lost.
"""

from __future__ import annotations

import signal
import time

from tests.e2e.cluster import wait_for
from tests.e2e.proxy import Relay
from tests.e2e.site import Site

from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.progress import tell
from benchmarks.servers import running_postgres

LEASE_S = 3.0
SILENT, RESIGNS = Bar(at_most=6.0), Bar(at_most=1.5)
FAULTS = {
    "kill": ("the leader is killed", SILENT),
    "stop": ("the leader is stopped", SILENT),
    "part": ("the leader is cut off from the database", SILENT),
    "resign": ("the leader is asked to resign", RESIGNS),
    "term": ("the leader is told to end", RESIGNS),
}


def measure(quick: bool) -> dict[str, Figure]:
    runs = 1 if quick else 5
    with running_postgres() as server:
        relays = [Relay(server.port) for _ in range(2)]
        site = Site(server.url("postgres"), lease_s=LEASE_S)
        site.stores = [
            url.replace(str(server.port), relay.url.rpartition(":")[2])
            for url, relay in zip(site.stores, relays, strict=True)
        ]
        try:
            site.start_all(agents=0)
            figures = {}
            for name, (what, bar) in FAULTS.items():
                spans = [_change(site, relays, name) for _ in range(runs)]
                tell(f"{what}: {', '.join(f'{span:.2f}' for span in spans)} s")
                figures[name] = median_figure(f"until another hub leads: {what}", "s", spans, bars=[bar])
            return figures
        finally:
            site.close()
            for relay in relays:
                relay.close()


def _change(site: Site, relays: list[Relay], how: str) -> float:
    leader = site.find_leader()
    began = time.perf_counter()
    if how == "part":
        for direction in ("up", "down"):
            relays[leader].lose(direction, later_too=True)
    elif how == "resign":
        answer = site.ask_to_resign(leader)
        if answer != 200:
            raise RuntimeError(f"the leader answered {answer}")
    else:
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}[how]
        site.signal_hub(leader, number)
    wait_for(lambda: site.find_leader(but=leader) >= 0, "another hub leads")
    span = time.perf_counter() - began
    if how == "part":
        relays[leader].heal()
        relays[leader].cut()
    elif how == "stop":
        site.signal_hub(leader, signal.SIGCONT)
    elif how in ("kill", "term"):
        site.start_one(leader)
    site.wait_standing()
    return span
