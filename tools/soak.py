"""Long runs of the fault simulation: many seeds on all cores, one seed with its story, or the deliberate bugs.

A failing seed is shrunk, printed with the line that shows it again, and written as a scenario that the suite runs from
then on. Nothing here judges: what must hold is checked inside the simulation.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dray.sim.faults.mutants import shy as shy_mutants
from dray.sim.faults.mutants.shy import SHOWN_BY
from dray.sim.faults.mutants.table import MUTANTS
from dray.sim.faults.soaking import (
    LAST_LINES,
    Tally,
    Verdict,
    draw_first,
    hunt,
    judge,
    reproduction,
    shrink_seed,
)

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "tests" / "scenarios"
PROGRESS_S = 10.0
# A bug that as many worlds in a row do not show is shy: a seed that does is kept.
SHY_SEEDS = 8
OTHERS = {
    "--kill": "tools.kill_soak",
    "--services": "tools.service_soak",
    "--hubs": "tools.hub_soak",
    "--calls": "tools.call_soak",
    "--fuzz": "tools.fuzz",
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev soak",
        description="Run the fault simulation over many seeds.",
        epilog="Real processes and broken input: --kill, --services, --hubs, --calls or --fuzz, each with a --help.",
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many seeds (default 200)")
    parser.add_argument("--first", type=int, metavar="S", help="the first seed (default: drawn; of bugs 0)")
    parser.add_argument("--large", action="store_true", help="large worlds: 12 workers, 50 jobs, 300 faults")
    parser.add_argument("--seed", type=int, metavar="N", help="run this one seed")
    parser.add_argument("--size", choices=("small", "large"), default="small", help="the size for --seed")
    parser.add_argument("--skip", default="", metavar="N,N", help="fault numbers that --seed leaves out")
    parser.add_argument("--story", action="store_true", help="print all that happened in --seed")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="plant these bugs (default: all), one by one"
    )
    parser.add_argument("--most", type=int, default=2000, metavar="N", help="seeds that a bug may survive")
    parser.add_argument("--renew", action="store_true", help="keep the seeds that show bugs now")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    parser.add_argument("--keep", action="store_true", help="write no scenario for a failing seed")
    return parser.parse_args()


# --- one seed ---------------------------------------------------------------------------------------------------------


def show_seed(options: argparse.Namespace) -> int:
    skipped = [int(number) for number in options.skip.split(",") if number]
    verdict = judge(options.seed, options.size, skipped)
    if options.story:
        print("\n".join(verdict.story))
    elif verdict.problem:
        print("\n".join(verdict.story[-LAST_LINES:]))
    if verdict.problem:
        print(f"\nFAILED {verdict.problem}")
        return 1
    print(f"clean: {verdict.outcome}")
    return 0


# --- many seeds -------------------------------------------------------------------------------------------------------


def judge_one(task: tuple[int, str]) -> tuple[Verdict, float]:
    began = time.process_time()
    verdict = judge(*task)
    return verdict._replace(story=verdict.story[-LAST_LINES:] if verdict.problem else []), (
        time.process_time() - began
    )


def soak(options: argparse.Namespace) -> int:
    size = "large" if options.large else "small"
    if options.first is None:
        options.first = draw_first(options.seeds)
    print(f"{options.seeds} {size} worlds from seed {options.first} on", flush=True)
    tasks = [(seed, size) for seed in range(options.first, options.first + options.seeds)]
    tally, failed, cpu_s = Tally(), list[Verdict](), 0.0
    began = told = time.monotonic()
    with multiprocessing.Pool(options.cores, settle_in) as pool:
        for verdict, spent_s in pool.imap_unordered(judge_one, tasks, chunksize=4):
            cpu_s += spent_s
            if verdict.outcome is not None:
                tally.add(verdict.outcome)
            else:
                failed.append(verdict)
                print(f"seed {verdict.seed}: {verdict.problem}", flush=True)
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                print(
                    f"  {tally.seeds + len(failed)} of {options.seeds} seeds, {len(failed)} failed",
                    flush=True,
                )
    figures = summarise(tally, len(failed), cpu_s, time.monotonic() - began, size, options)
    print("\n".join(tell(figures)))
    if options.json:
        problems = {"problems": {str(verdict.seed): verdict.problem for verdict in failed}} if failed else {}
        options.json.write_text(json.dumps(figures | problems, indent=2) + "\n")
    for verdict in failed[:3]:
        explain(verdict, size, options.keep)
    return 1 if failed else 0


def summarise(
    tally: Tally, failed: int, cpu_s: float, wall_s: float, size: str, options: argparse.Namespace
) -> dict[str, Any]:
    done = tally.seeds + failed
    return {
        "size": size,
        "first_seed": options.first,
        "seeds": done,
        "failed": failed,
        "steps": tally.steps,
        "runs_of_user_code": tally.runs,
        "virtual_hours": round(tally.virtual_s / 3600, 1),
        "wall_s": round(wall_s, 1),
        "core_s": round(cpu_s, 1),
        "speed_up": round(tally.virtual_s / wall_s),
        "worlds_per_core_hour": round(done / cpu_s * 3600),
        "faults": dict(sorted(tally.faults.items())),
    }


def tell(figures: dict[str, Any]) -> Iterator[str]:
    yield f"{figures['seeds']} {figures['size']} worlds, {figures['failed']} failed"
    for name in ("steps", "runs_of_user_code", "virtual_hours", "speed_up", "worlds_per_core_hour"):
        yield f"  {name.replace('_', ' '):24} {figures[name]:>12,}"
    for kind, count in figures["faults"].items():
        yield f"    {kind:28} {count:>10,}"


def explain(verdict: Verdict, size: str, keep: bool) -> None:
    print(f"\nseed {verdict.seed} failed: {verdict.problem}\nits last lines:")
    print("\n".join(f"  {line}" for line in verdict.story))
    scenario = shrink_seed(verdict.seed, size)
    print(f"again, with {len(scenario.skipped)} faults left out:\n  {reproduction(scenario)} --story")
    if not keep:
        scenario.note = "found by a soak: say here what was wrong once it is mended"
        path = SCENARIOS / f"{size}-{verdict.seed}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(scenario), indent=2) + b"\n")
        print(f"written to {path.relative_to(ROOT)}")


# --- deliberate bugs --------------------------------------------------------------------------------------------------


def hunt_one(task: tuple[str, int, int]) -> tuple[str, Verdict | None]:
    name, first, most = task
    (mutant,) = [one for one in MUTANTS if one.name == name]
    verdict = hunt(mutant, first, most)
    return name, verdict._replace(story=[]) if verdict else None


def soak_mutants(options: argparse.Namespace) -> int:
    known = {mutant.name: mutant for mutant in MUTANTS}
    if strange := [name for name in options.mutants if name not in known]:
        print(f"there is no bug named {', '.join(strange)}; known are: {', '.join(known)}", file=sys.stderr)
        return 2
    first = options.first or 0
    tasks = [(name, first, options.most) for name in options.mutants or known]
    caught: dict[str, dict[str, Any]] = {}
    with multiprocessing.Pool(options.cores, settle_in) as pool:
        for name, verdict in pool.imap_unordered(hunt_one, tasks, chunksize=1):
            problem = verdict.problem[:200] if verdict else ""
            seed = verdict.seed if verdict else None
            caught[name] = {
                "sentence": known[name].sentence,
                "caught_by_seed": seed,
                "seeds_needed": None if seed is None else count_seeds(name, seed, first),
                "problem": problem,
            }
            word = f"caught by seed {seed}" if verdict else f"SURVIVES {options.most} seeds"
            print(f"{name:28} {word}  {problem[:110]}", flush=True)
    survivors = [name for name, fate in caught.items() if fate["caught_by_seed"] is None]
    print(f"{len(caught) - len(survivors)} of {len(caught)} bugs caught")
    if options.json:
        in_order = {name: caught[name] for name in known if name in caught}
        options.json.write_text(json.dumps(in_order, indent=2) + "\n")
    stale = [name for name in caught if caught[name]["caught_by_seed"] != SHOWN_BY.get(name, -1)]
    stale = [name for name in stale if name in SHOWN_BY]
    if options.renew:
        keep_seeds({name: fate for name, fate in caught.items() if name not in survivors})
    elif stale:
        print(f"other seeds than those that are kept show: {', '.join(stale)} (--renew keeps them)")
    return 1 if survivors or (stale and not options.renew) else 0


def count_seeds(name: str, seed: int, first: int) -> int:
    """How many worlds were looked at until one showed a bug: the one that is kept for it comes first."""
    if seed == SHOWN_BY.get(name, -1):
        return 1
    return seed - first + 1 + (name in SHOWN_BY)


def keep_seeds(caught: dict[str, dict[str, Any]]) -> None:
    """Write down which seeds show shy bugs: those that are kept and still do, and others for the rest."""
    seeds = SHOWN_BY | {
        name: fate["caught_by_seed"]
        for name, fate in caught.items()
        if name in SHOWN_BY or fate["seeds_needed"] > SHY_SEEDS
    }
    path = Path(shy_mutants.__file__)
    head, opening, _ = path.read_text().partition("SHOWN_BY: dict[str, int] = {\n")
    lines = [f'    "{mutant.name}": {seeds[mutant.name]},\n' for mutant in MUTANTS if mutant.name in seeds]
    path.write_text(f"{head}{opening}{''.join(lines)}}}\n")
    print(f"{len(lines)} seeds are kept in {path.name}")


def settle_in() -> None:
    """Alarms are expected by the thousand; the histories keep their own story. A world leaves little that goes round in
    circles: looking for that as seldom as this takes a seventh off its time."""
    logging.disable(logging.CRITICAL)
    gc.set_threshold(50_000, 20, 20)


def find_other(words: list[str]) -> Callable[[list[str]], int] | None:
    """The soak on real processes or with broken input that was asked for instead of the simulation."""
    name = next((OTHERS[word] for word in words if word in OTHERS), "")
    if not name:
        return None
    sys.path.append(str(ROOT))
    main: Callable[[list[str]], int] = importlib.import_module(name).main
    return main


def main() -> int:
    if other := find_other(sys.argv[1:]):
        return other([word for word in sys.argv[1:] if word not in OTHERS])
    options = read_arguments()
    settle_in()
    if options.seed is not None:
        return show_seed(options)
    return soak(options) if options.mutants is None else soak_mutants(options)


if __name__ == "__main__":
    sys.exit(main())
