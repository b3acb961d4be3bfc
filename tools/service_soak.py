"""`./dev soak --services`: rounds of kill -9 of hub, agents, supervisors and services while people change services.

They are scaled, updated, rolled back, restarted and replaced; beside the kills disks are full, processes stand still
(SIGSTOP) and workers run out of pids. What must hold is looked at all the time, and strictly when the kills are over:
then changes are made once more while nothing dies. Owns the order of a run and its report.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from tests.e2e.cluster import Cluster  # noqa: E402 - only found after the lines above
from tests.e2e.test_ports import find_span  # noqa: E402 - only found after the lines above
from tools.kill_soak_kills import AGENTS, TIMERS, Killer  # noqa: E402 - only found after the lines above
from tools.service_soak_load import NAMES, Book, People  # noqa: E402 - only found after the lines above
from tools.service_soak_watch import Watch  # noqa: E402 - only found after the lines above
from tools.soak_faults import Machine  # noqa: E402 - only found after the lines above
from tools.soak_rounds import keep, list_moments, read_words, run_rounds, save  # noqa: E402 - as above

COMMAND = "./dev soak --services"
RESULTS = ROOT / "benchmarks" / "results" / "service_soak.json"
# Of each kind so many for each round.
SHARES = {"hub": 0.7, "agent": 0.5, "supervisor": 0.3, "task": 0.7, "full": 0.2, "frozen": 0.4, "pids": 0.1}
SLOTS = 4
PORTS = 6
SUMMED = ("rounds", "attempts", "looks", "endpoints", "calm_changes")


class Rounds(Killer):
    """Workers with slots for services, and few ports each: what one gives back another gets soon."""

    def flags_of(self, name: str) -> tuple[str, ...]:
        first = find_span(PORTS)
        return "--service-slots", str(SLOTS), "--ports", f"{first}-{first + PORTS - 1}"


def main(argv: list[str]) -> int:
    """Run rounds, look at what is there, report. 0 only where nothing was found."""
    options = read_words(argv, COMMAND, __doc__, SHARES, RESULTS)
    began = time.monotonic()
    cluster = Cluster({**TIMERS})
    machine = Machine(cluster, AGENTS)
    try:
        for note in machine.notes:
            print(note)
        book = Book(cluster.folder)
        killer = Rounds(cluster, book.lines, random.Random(options.seed), machine=machine)
        killer.start_all()
        people = People(cluster, book, options.seed)
        people.start()
        watch = Watch(cluster, book, killer)
        watch.start()
        rounds = run_rounds(killer, options, SHARES, random.Random(options.seed + 1), book.tell)
        finish(killer, people, watch, options.end_s)
        report = make_report(options.seed, rounds, time.monotonic() - began, book, killer, watch)
        print_report(report, killer, watch)
        save(options.out, COMMAND, report, SUMMED, tuple(SHARES))
        if watch.anomalies and options.keep:
            keep(cluster.folder, options.keep)
        return 1 if watch.anomalies else 0
    finally:
        machine.close()
        cluster.close()


def finish(killer: Killer, people: People, watch: Watch, end_s: float) -> None:
    """The kills are over: people stop, services get ready, are changed while nothing dies, and are stopped."""
    killer.settle()
    people.stop(end_s)
    watch.stop()
    if watch.wait_ready(people, end_s):
        watch.check_whole()
        watch.check_calm(people, end_s)
        watch.check_whole()
    for name in NAMES:
        people.end(name)
    watch.check_lines()
    watch.look_around()


def make_report(
    seed: int, rounds: int, seconds: float, book: Book, killer: Killer, watch: Watch
) -> dict[str, Any]:
    """One run as a document."""
    counts = watch.counts
    return {
        "ended_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seed": seed,
        "seconds": round(seconds, 1),
        "rounds": rounds,
        "kills": {kind: killer.kills[kind] for kind in SHARES},
        "acts": dict(sorted(book.acts.items())),
        "services": len(book.stopped),
        "attempts": counts["said_begin"],
        "ended_when_asked": counts["said_end"],
        "looks": counts["looks"],
        "endpoints": counts["endpoints"],
        "calm_changes": counts["calm_changes"],
        "rests_cut_short": counts["rests_cut_short"],
        "client_retries": book.retries,
        "anomalies": [anomaly._asdict() for anomaly in watch.anomalies],
    }


def print_report(report: dict[str, Any], killer: Killer, watch: Watch) -> None:
    """The run for people: numbers, then the findings, then all that was killed."""
    for name, value in report.items():
        if name != "anomalies":
            print(f"  {name:22} {value}")
    print(f"  {'anomalies':22} {dict(Counter(anomaly.kind for anomaly in watch.anomalies)) or 0}")
    for anomaly in watch.anomalies[:40]:
        print(f"\nANOMALY {anomaly.kind}: {anomaly.task} {anomaly.text}")
    if watch.anomalies:
        print("\n".join(["", *list_moments(killer, 0, time.time())]))
        print(f"\nreproduce the same choices with --seed {report['seed']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
