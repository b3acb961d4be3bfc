"""`./dev soak --kill`: rounds of kill -9 of hub, agents, supervisors and tasks under load, and the account after them.

Beside the kills disks are full, processes stand still (SIGSTOP) and workers run out of pids, each for a while.
Owns the words of the command, the order of a run and its report. All processes are real and live in one temporary
folder; nothing is left behind. Random choices come from --seed; what follows from them still depends on the machine,
so a finding is printed with the timeline of kills around it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
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
from tools.kill_soak_account import Account, Anomaly  # noqa: E402 - only found after the lines above
from tools.kill_soak_kills import AGENTS, TIMERS, Killer  # noqa: E402 - only found after the lines above
from tools.kill_soak_load import Ledger, Load  # noqa: E402 - only found after the lines above
from tools.soak_faults import Machine  # noqa: E402 - only found after the lines above

RESULTS = ROOT / "benchmarks" / "results" / "kill_soak.json"
# Of each kind so many for each round.
SHARES = {"hub": 1.0, "agent": 0.5, "supervisor": 0.25, "task": 1.0, "full": 0.3, "frozen": 0.5, "pids": 0.2}
KINDS = tuple(SHARES)
END_S = 120.0
AROUND_S = 6.0
KEPT_RUNS = 40


def read_words(argv: list[str]) -> argparse.Namespace:
    """Read the words of the command."""
    parser = argparse.ArgumentParser(prog="./dev soak --kill", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many rounds (default 20)")
    words = "how many: kills of hub, agents, supervisors and tasks; full disks; processes that stand still; no pids"
    for kind, share in SHARES.items():
        parser.add_argument(f"--{kind}", type=int, metavar="N", help=f"{words} (default {share:g} a round)")
    parser.add_argument("--round-s", default="1.0-3.0", help="seconds of a round, LOW-HIGH")
    parser.add_argument("--limit-s", type=float, default=0.0, help="stop killing after so long (0: no limit)")
    parser.add_argument("--end-s", type=float, default=END_S, help="what clients, then all work, get to end")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file that the run is added to")
    parser.add_argument("--keep", type=Path, help="folder to copy the cluster's files to after a finding")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run rounds, settle the account, report. 0 only where nothing was found."""
    options = read_words(argv)
    seed = options.seed or random.SystemRandom().randrange(1, 10**6)
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
        rounds = run_rounds(killer, ledger, options, random.Random(seed + 1))
        account = finish(cluster, ledger, killer, load, options.end_s)
        report = make_report(seed, rounds, time.monotonic() - began, ledger, killer, account)
        print_report(report, killer, account)
        save(options.out, report)
        if account.anomalies and options.keep:
            keep(cluster.folder, options.keep)
        return 1 if account.anomalies else 0
    finally:
        machine.close()
        cluster.close()


def run_rounds(killer: Killer, ledger: Ledger, options: argparse.Namespace, rng: random.Random) -> int:
    """Spread the kills over rounds at random; every round has at least one while there are enough."""
    plan: list[list[str]] = [[] for _ in range(options.rounds)]
    for kind, share in SHARES.items():
        given = getattr(options, kind)
        for number in range(round(share * options.rounds) if given is None else given):
            if kind != "pids" or (killer.machine is not None and killer.machine.has_pids):
                plan[rng.randrange(options.rounds) if number >= options.rounds else number].append(kind)
        rng.shuffle(plan)
    rounds: int = options.rounds
    low, high = (float(part) for part in options.round_s.split("-"))
    began = time.monotonic()
    for number, kinds in enumerate(plan, 1):
        killer.run_round(rng.uniform(low, high), kinds)
        if number % 10 == 0 or number == rounds:
            kills = " ".join(f"{kind} {killer.kills[kind]}" for kind in KINDS)
            seen = f"{len(ledger.ids)} jobs answered, {ledger.backlog} open"
            print(f"[{time.monotonic() - began:6.1f} s] round {number}/{rounds}: {kills}; {seen}", flush=True)
        if options.limit_s and time.monotonic() - began > options.limit_s:
            return number
    return rounds


def finish(cluster: Cluster, ledger: Ledger, killer: Killer, load: Load, end_s: float) -> Account:
    """The kills are over: everything comes up, clients stop, all work ends, the account is settled."""
    killer.settle()
    load.stop(end_s)
    account = Account(cluster, ledger, killer)
    account.wait_for_end(end_s)
    account.settle()
    return account


def keep(folder: Path, target: Path) -> None:
    """Copy the cluster's files; its sockets cannot be copied."""

    def sockets(inside: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(inside, name).is_socket()]

    shutil.copytree(folder, target, ignore=sockets, dirs_exist_ok=True, ignore_dangling_symlinks=True)


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
        "kills": {kind: killer.kills[kind] for kind in KINDS},
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
    return lines + [
        f"{datetime.fromtimestamp(moment.at_s, UTC):%H:%M:%S.%f} {moment.what}"
        for moment in killer.timeline
        if first <= moment.at_s <= last
    ]


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else time.time()


def save(path: Path, report: dict[str, Any]) -> None:
    """Add the run to the file and sum up all runs in it."""
    runs: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        runs = json.loads(path.read_text())["runs"]
    runs = [*runs, report][-KEPT_RUNS:]
    summed = ("rounds", "jobs", "acknowledged", "tasks", "attempts", "requeues", "losses", "outputs_compared")
    totals: dict[str, Any] = {name: sum(run[name] for run in runs) for name in summed}
    totals["kills"] = {kind: sum(run["kills"].get(kind, 0) for run in runs) for kind in KINDS}
    totals["anomalies"] = sum(len(run["anomalies"]) for run in runs)
    document = {"name": "kill_soak", "command": "./dev soak --kill", "totals": totals, "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(fresh, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
