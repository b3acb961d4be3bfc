"""`./dev soak --kill`: rounds of kill -9 of hub, agents, supervisors and tasks under load, and the account after them.

Beside the kills disks are full, processes stand still (SIGSTOP) and workers run out of pids, each for a while.
Owns the words of the command, the order of a run and its report. All processes are real and live in one temporary
folder; nothing is left behind. Random choices come from --seed; what follows from them still depends on the machine,
so a finding is printed with the timeline of kills around it.
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
from tools.kill_soak_account import Account  # noqa: E402 - only found after the lines above
from tools.kill_soak_kills import AGENTS, TIMERS, Killer  # noqa: E402 - only found after the lines above
from tools.kill_soak_load import Ledger, Load  # noqa: E402 - only found after the lines above
from tools.soak_aftermath import Anomaly  # noqa: E402 - only found after the lines above
from tools.soak_faults import Machine  # noqa: E402 - only found after the lines above
from tools.soak_rounds import keep, list_moments, read_words, run_rounds, save  # noqa: E402 - as above

RESULTS = ROOT / "benchmarks" / "results" / "kill_soak.json"
# Of each kind so many for each round.
SHARES = {"hub": 1.0, "agent": 0.5, "supervisor": 0.25, "task": 1.0, "full": 0.3, "frozen": 0.5, "pids": 0.2}
COMMAND = "./dev soak --kill"
SUMMED = ("rounds", "jobs", "acknowledged", "tasks", "attempts", "requeues", "losses", "outputs_compared")
AROUND_S = 6.0


def main(argv: list[str]) -> int:
    """Run rounds, settle the account, report. 0 only where nothing was found."""
    options = read_words(argv, COMMAND, __doc__, SHARES, RESULTS)
    seed = options.seed
    began = time.monotonic()
    cluster = Cluster({**TIMERS})
    machine = Machine(cluster, AGENTS)
    try:
        for note in machine.notes:
            print(note)
        ledger = Ledger(cluster.folder)
        killer = Killer(cluster, ledger.lines, random.Random(seed), machine=machine)
        killer.start_all()
        load = Load(cluster, ledger, seed)
        load.start()
        rounds = run_rounds(killer, options, SHARES, random.Random(seed + 1), ledger.tell)
        account = finish(cluster, ledger, killer, load, options.end_s)
        report = make_report(seed, rounds, time.monotonic() - began, ledger, killer, account)
        print_report(report, killer, account)
        save(options.out, COMMAND, report, SUMMED, tuple(SHARES))
        if account.anomalies and options.keep:
            keep(cluster.folder, options.keep)
        return 1 if account.anomalies else 0
    finally:
        machine.close()
        cluster.close()


def finish(cluster: Cluster, ledger: Ledger, killer: Killer, load: Load, end_s: float) -> Account:
    """The kills are over: everything comes up, clients stop, all work ends, the account is settled."""
    killer.settle()
    load.stop(end_s)
    account = Account(cluster, ledger, killer)
    account.wait_for_end(end_s)
    account.settle()
    return account


def make_report(
    seed: int, rounds: int, seconds: float, ledger: Ledger, killer: Killer, account: Account
) -> dict[str, Any]:
    """One run as a document."""
    counts = account.counts
    states = ("succeeded", "failed", "killed", "worker_failed")
    return {
        "ended_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seed": seed,
        "seconds": round(seconds, 1),
        "rounds": rounds,
        "kills": {kind: killer.kills[kind] for kind in SHARES},
        "jobs": len(account.jobs),
        "acknowledged": len(ledger.keys),
        "tasks": len(account.tasks),
        "states": {state: counts[state] for state in states},
        "attempts": counts["attempts"],
        "attempts_started": counts["attempts_started"],
        "attempts_begun": counts["attempts_begun"],
        "begun_unrecorded": counts["begun_unrecorded"],
        "once_begun_again": counts["once_begun_again"],
        "ended_more_than_once": counts["ended_more_than_once"],
        "requeues": counts["requeues"],
        "losses": counts["losses"],
        "cancels_taken": sum(ledger.cancelled.values()),
        "outputs_compared": counts["outputs"],
        "outputs_without_room": counts["outputs_without_room"],
        "final_states_seen": ledger.samples,
        "client_retries": ledger.retries,
        "anomalies": [anomaly._asdict() for anomaly in account.anomalies],
    }


def print_report(report: dict[str, Any], killer: Killer, account: Account) -> None:
    """The run for people: numbers, then each finding with what was killed around it."""
    for name, value in report.items():
        if name != "anomalies":
            print(f"  {name:22} {value}")
    by_kind = Counter(anomaly.kind for anomaly in account.anomalies)
    print(f"  {'anomalies':22} {dict(by_kind) or 0}")
    for anomaly in account.anomalies[:40]:
        print(f"\nANOMALY {anomaly.kind}: {anomaly.task} {anomaly.text}")
        for line in explain(anomaly, killer, account):
            print(f"    {line}")
    if account.anomalies:
        print(f"\nreproduce the same choices with --seed {report['seed']}")


def explain(anomaly: Anomaly, killer: Killer, account: Account) -> list[str]:
    """The attempts of the task and what was killed while they lived."""
    task = account.tasks.get(anomaly.task)
    if task is None or not task.attempts:
        return []
    lines = [
        f"attempt {a['no']} {a['uid']} on {a['worker']}: {a['phase']} {a['exit_class']} {a['error']!r}, assigned "
        f"{a['assigned_at']}, accepted {a['accepted_at']}, started {a['started_at']}, ended {a['ended_at']}"
        for a in task.attempts
    ]
    first = _seconds(task.attempts[0]["assigned_at"]) - AROUND_S / 3
    last = _seconds(task.record["ended_at"] or task.attempts[-1]["ended_at"]) + AROUND_S
    return lines + list_moments(killer, first, last)


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else time.time()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
