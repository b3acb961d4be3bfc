"""`./dev soak --hubs`: rounds in which the lead changes under load, on real hubs, workers and PostgreSQL.

The leader is killed, stopped (SIGSTOP) and let go on, told to end (SIGTERM), asked to resign, cut off from the database
and let back; or the database, or Redis, is killed and started again, under which the same hub goes on. Clients submit
all the time. What was acknowledged must come to its end, once, and the view in Redis must say so; how long the site was
without a leader is measured from outside. Owns the order of a run and its report.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from tests.e2e.cluster import wait_for  # noqa: E402 - only found after the lines above
from tests.e2e.proxy import Relay  # noqa: E402 - only found after the lines above
from tests.e2e.site import Client, Site, settle  # noqa: E402 - only found after the lines above
from tests.postgres import Server, Servers  # noqa: E402 - only found after the lines above
from tests.valkey import Valkey, Valkeys  # noqa: E402 - only found after the lines above
from tools.soak_rounds import keep, save  # noqa: E402 - only found after the lines above

COMMAND = "./dev soak --hubs"
RESULTS = ROOT / "benchmarks" / "results" / "hub_soak.json"
KINDS = ("kill", "stop", "resign", "term", "partition", "postgres", "redis")
SUMMED = ("rounds", "acknowledged")
CLIENTS = 3
STOPPED_S = (0.5, 6.0)
AWAY_S = (0.1, 3.0)
QUEUE = "dray:{q:default}:"


class Rounds:
    """What is done to the hubs and to what they stand on, and how long it was missed each time."""

    def __init__(
        self,
        site: Site,
        server: Server,
        relays: list[Relay],
        valkey: Valkey,
        clients: list[Client],
        seed: int,
    ) -> None:
        self._site, self._server, self._relays, self._valkey = site, server, relays, valkey
        self._clients, self._rng = clients, random.Random(seed)  # chance, no secret
        self.kills: Counter[str] = Counter()
        self.takeovers: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._acts: dict[str, Callable[[int], None]] = {
            "kill": lambda leader: site.signal_hub(leader, signal.SIGKILL),
            "stop": lambda leader: site.signal_hub(leader, signal.SIGSTOP),
            "term": lambda leader: site.signal_hub(leader, signal.SIGTERM),
            "resign": self._resign,
            "partition": self._cut_off,
        }
        self._others: dict[str, Callable[[], None]] = {
            "postgres": self._kill_database,
            "redis": self._kill_redis,
        }

    def run(self, kind: str) -> None:
        """One fault, then until all is whole again and work goes on."""
        self.kills[kind] += 1
        if kind in self._others:
            self._others[kind]()
        else:
            self._change_leader(kind)
        self._site.wait_standing()
        before = self._count()
        wait_for(lambda: self._count() > before + CLIENTS, "jobs are taken in again")

    def _change_leader(self, kind: str) -> None:
        leader = self._site.find_leader()
        began = time.monotonic()
        self._acts[kind](leader)
        wait_for(lambda: self._site.find_leader(but=leader) >= 0, f"another hub leads after {kind}")
        self.takeovers[kind].append(time.monotonic() - began)
        if kind in ("stop", "partition"):
            time.sleep(self._rng.uniform(*STOPPED_S))
        if kind == "stop":
            self._site.signal_hub(leader, signal.SIGCONT)
        elif kind == "partition":
            self._relays[leader].heal()
            self._relays[leader].cut()
        elif kind in ("kill", "term"):
            self._site.start_one(leader)

    def _resign(self, leader: int) -> None:
        done = self._site.dray("hub", "resign", "--hub", self._site.urls[leader])
        assert done.code == 0, done.err

    def _cut_off(self, leader: int) -> None:
        """Nothing passes between it and the database, and neither side is told; all others still reach it."""
        for direction in ("up", "down"):
            self._relays[leader].lose(direction, later_too=True)

    def _kill_database(self) -> None:
        """The same leader goes on when the server is back; what it was without an answer for is counted."""
        self._server.kill()
        time.sleep(self._rng.uniform(*AWAY_S))
        self._server.start()
        began, before = time.monotonic(), self._count()
        wait_for(lambda: self._count() > before, "jobs are taken in again")
        self.takeovers["postgres"].append(time.monotonic() - began)

    def _kill_redis(self) -> None:
        """It comes back empty: what is measured is until the view is there again, no older than it was."""
        with self._valkey.client() as view:
            before = int(view.hget(f"{QUEUE}stats", "seq") or 0)
            self._valkey.kill()
            time.sleep(self._rng.uniform(*AWAY_S))
            self._valkey.start()
            began = time.monotonic()
            wait_for(lambda: int(view.hget(f"{QUEUE}stats", "seq") or 0) > before, "the view is back")
        self.takeovers["redis"].append(time.monotonic() - began)

    def _count(self) -> int:
        return sum(len(client.acknowledged) for client in self._clients)


def main(argv: list[str]) -> int:
    """Run rounds, let all end, report. 0 only where nothing was lost, doubled or stuck."""
    options = read_words(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pg") as folder, contextlib.ExitStack() as open_:
        server = Servers(Path(folder)).make("fsync=on")
        server.start()
        open_.callback(server.stop)
        valkeys = Valkeys(Path(tempfile.mkdtemp(prefix="vk")))
        open_.callback(valkeys.stop)
        valkey = valkeys.make()
        site = Site(server.url("postgres"), options.count, options.lease_s, REDIS=valkey.url)
        open_.callback(site.close)
        relays = [Relay(server.port) for _ in site.stores]
        for number, relay in enumerate(relays):
            open_.callback(relay.close)
            site.stores[number] = site.stores[number].replace(f":{server.port}/", f":{relay.port}/")
        site.start_all()
        clients = [Client(site, f"c{number}") for number in range(CLIENTS)]
        rounds = Rounds(site, server, relays, valkey, clients, options.seed)
        for client in clients:
            client.start()
        try:
            run_all(rounds, options.rounds, random.Random(options.seed), began)  # chance, no secret
        finally:
            for client in clients:
                client.stop()
        found = settle(site, clients) | {"view": check_view(valkey)}
        report = make_report(options, rounds, clients, found, time.monotonic() - began)
        print_report(report)
        save(options.out, COMMAND, report, SUMMED, KINDS)
        wrong = any(found.values()) or any(client.refused for client in clients)
        if wrong and options.keep:
            keep(site.folder, options.keep)
        return 1 if wrong else 0


def check_view(valkey: Valkey) -> list[str]:
    """What Redis shows of a site on which all work has ended; gives what is wrong with it."""

    def left() -> list[str]:
        with valkey.client() as view:
            stats = view.hgetall(f"{QUEUE}stats")
            members = [name for name in ("waiting", "running") if view.zcard(QUEUE + name)]
        return members + [
            name for name in ("waiting_tasks", "held_tasks", "running") if stats.get(name) != "0"
        ]

    try:
        wait_for(lambda: not left(), "the view in Redis shows that all has ended")
    except AssertionError:
        return left()
    return []


def run_all(rounds: Rounds, count: int, rng: random.Random, began: float) -> None:
    """Every kind as often as every other, in an order by chance."""
    plan = [KINDS[number % len(KINDS)] for number in range(count)]
    rng.shuffle(plan)
    for number, kind in enumerate(plan, 1):
        rounds.run(kind)
        spent = rounds.takeovers[kind][-1]
        print(
            f"[{time.monotonic() - began:6.1f} s] round {number}/{count}: {kind}, {spent:.2f} s", flush=True
        )


def read_words(argv: list[str]) -> argparse.Namespace:
    """Read the words of a run."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many rounds (default 20)")
    parser.add_argument("--count", type=int, default=2, metavar="N", help="how many hubs (default 2)")
    parser.add_argument(
        "--lease-s", type=float, default=3.0, help="the lease (default 3.0, as that of a hub)"
    )
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file that the run is added to")
    parser.add_argument("--keep", type=Path, help="folder to copy the site's files to after a finding")
    options = parser.parse_args(argv)
    options.seed = options.seed or random.SystemRandom().randrange(1, 10**6)
    return options


def make_report(
    options: argparse.Namespace,
    rounds: Rounds,
    clients: list[Client],
    found: dict[str, list[str]],
    seconds: float,
) -> dict[str, Any]:
    """One run as a document; take-overs in seconds, from the fault to a hub that says it leads."""
    return {
        "ended_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "rounds": options.rounds,
        "hubs": options.count,
        "lease_s": options.lease_s,
        "kills": {kind: rounds.kills[kind] for kind in KINDS},
        "acknowledged": sum(len(client.acknowledged) for client in clients),
        "refused": sum(len(client.refused) for client in clients),
        "slowest_submit_s": round(max(client.slowest_s for client in clients), 2),
        "takeover_s": {
            kind: {"p50": round(statistics.median(times), 2), "max": round(max(times), 2)}
            for kind, times in rounds.takeovers.items()
            if times
        },
        **{kind: len(names) for kind, names in found.items()},
        "anomalies": [f"{kind}: {name}" for kind, names in found.items() for name in names]
        + [f"refused: {text}" for client in clients for text in client.refused],
    }


def print_report(report: dict[str, Any]) -> None:
    """The run for people."""
    for name, value in report.items():
        print(f"  {name:18} {value}")
    if report["anomalies"]:
        print(f"\nreproduce the same choices with --seed {report['seed']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
