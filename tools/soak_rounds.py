"""Rounds of kills, whatever the load is: their words on the command line, their order, and the file that runs are
added to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.kill_soak_kills import Killer

END_S = 120.0
KEPT_RUNS = 40


def read_words(
    argv: list[str], command: str, description: str | None, shares: Mapping[str, float], out: Path
) -> argparse.Namespace:
    """Read the words of a soak by kills; `shares` says how many of each kind there are for each round."""
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.add_argument("--rounds", type=int, default=20, help="how many rounds (default 20)")
    words = "how many: kills of hub, agents, supervisors and tasks; full disks; processes that stand still; no pids"
    for kind, share in shares.items():
        parser.add_argument(f"--{kind}", type=int, metavar="N", help=f"{words} (default {share:g} a round)")
    parser.add_argument("--round-s", default="1.0-3.0", help="seconds of a round, LOW-HIGH")
    parser.add_argument("--limit-s", type=float, default=0.0, help="stop killing after so long (0: no limit)")
    parser.add_argument("--end-s", type=float, default=END_S, help="what clients, then all work, get to end")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    parser.add_argument("--out", type=Path, default=out, help="JSON file that the run is added to")
    parser.add_argument("--keep", type=Path, help="folder to copy the cluster's files to after a finding")
    options = parser.parse_args(argv)
    options.seed = options.seed or random.SystemRandom().randrange(1, 10**6)
    return options


def run_rounds(
    killer: Killer,
    options: argparse.Namespace,
    shares: Mapping[str, float],
    rng: random.Random,
    tell: Callable[[], str],
) -> int:
    """Spread the kills over rounds at random; every round has at least one while there are enough."""
    plan: list[list[str]] = [[] for _ in range(options.rounds)]
    for kind, share in shares.items():
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
            kills = " ".join(f"{kind} {killer.kills[kind]}" for kind in shares)
            print(
                f"[{time.monotonic() - began:6.1f} s] round {number}/{rounds}: {kills}; {tell()}", flush=True
            )
        if options.limit_s and time.monotonic() - began > options.limit_s:
            return number
    return rounds


def list_moments(killer: Killer, first_s: float, last_s: float) -> list[str]:
    """What was done to the cluster within this time."""
    return [
        f"{datetime.fromtimestamp(moment.at_s, UTC):%H:%M:%S.%f} {moment.what}"
        for moment in killer.timeline
        if first_s <= moment.at_s <= last_s
    ]


def keep(folder: Path, target: Path) -> None:
    """Copy the cluster's files; its sockets cannot be copied."""

    def sockets(inside: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(inside, name).is_socket()]

    shutil.copytree(folder, target, ignore=sockets, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def save(
    path: Path, command: str, report: dict[str, Any], summed: Sequence[str], kinds: Sequence[str]
) -> None:
    """Add the run to the file and sum up all runs in it."""
    runs: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        runs = json.loads(path.read_text())["runs"]
    runs = [*runs, report][-KEPT_RUNS:]
    totals: dict[str, Any] = {name: sum(run[name] for run in runs) for name in summed}
    totals["kills"] = {kind: sum(run["kills"].get(kind, 0) for run in runs) for kind in kinds}
    totals["anomalies"] = sum(len(run["anomalies"]) for run in runs)
    document = {"name": path.stem, "command": command, "totals": totals, "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(fresh, path)
