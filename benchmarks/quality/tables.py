"""Each part of the quality benchmarks as runs and rows: what is called, and how it stands beside its bar.

A part gives the runs, as they go to JSON, and a table whose first row is the head.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.quality import backfill, capacity, deadlines, fairness, muri, openb, pace
from benchmarks.quality.moves import bringing, gavel

Runs = list[dict[str, Any]]
Rows = list[list[str]]
Call = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]


def run_all(calls: Sequence[Call], cores: int) -> Runs:
    """Make the calls side by side; each result is shown as it comes."""
    found: Runs = []
    with ProcessPoolExecutor(cores) as pool:
        for done in as_completed([pool.submit(call, *values) for call, values in calls]):
            found.append(done.result())
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def mean(runs: Sequence[dict[str, Any]], name: str) -> float:
    """The mean of one figure."""
    return float(sum(run[name] for run in runs) / len(runs))


def placement(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """What stays unallocated on openb, by trace and rule."""
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    chosen, variants = asked.strategies.split(","), asked.variants.split(",")
    calls: list[Call] = [
        (openb.measure, (asked.traces, variant, name, seed))
        for variant in variants
        for name in chosen
        for seed in seeds
    ]
    runs = sorted(run_all(calls, asked.cores), key=lambda run: (run["variant"], run["strategy"], run["seed"]))
    rows = [
        [
            "trace",
            "rule",
            "unallocated %",
            "published",
            "pass",
            "beat",
            "moved",
            "of placed",
            "seeds",
            "s per run",
        ]
    ]
    for variant in variants:
        for name in chosen:
            mine = [run for run in runs if run["variant"] == variant and run["strategy"] == name]
            published = openb.PUBLISHED[variant]
            row = [
                variant,
                name,
                f"{mean(mine, 'unallocated'):.2f}",
                f"{openb.published_of(variant, name):.2f}",
            ]
            knows = openb.strategy_of(name) in openb.KNOWING
            row += [f"<= {published['pass']}", f"<= {published['beat']}"] if knows else ["± 0.35", ""]
            moved = mean(mine, "moved")
            row += [f"{moved:.1f}", f"{moved / mean(mine, 'placed'):.2%}"] if moved else ["", ""]
            rows.append([*row, str(len(mine)), f"{mean(mine, 'cpu_s'):.1f}"])
    return runs, rows


def order(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """Mean completion times on Philly, by trace and rule."""
    runs: Runs = []
    rows = [["trace", "rule", "mean JCT ks", "published", "ratio", "stopped", "of them moved", "s per run"]]
    for name in muri.TRACES:
        jobs = muri.read(asked.traces, name)
        for rule, key in muri.KEYS.items():
            found = {"jct_ks": muri.replay_published(jobs, key)}
            runs.append({"trace": name, "rule": f"{rule} published loop", **found})
            rows.append(_order_row(name, f"{rule}, published loop", found, muri.PUBLISHED[rule][name]))
        for rule in muri.POLICIES:
            if name in muri.PUBLISHED[rule]:
                found = muri.replay_product(jobs, rule)
                runs.append({"trace": name, "rule": rule, **found})
                rows.append(_order_row(name, rule, found, muri.PUBLISHED[rule][name]))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return runs, rows


def _order_row(trace: str, rule: str, found: dict[str, Any], published: float) -> list[str]:
    ratio = found["jct_ks"] / published
    spent = f"{found['cpu_s']:.1f}" if "cpu_s" in found else ""
    row = [trace, rule, f"{found['jct_ks']:.1f}", f"{published:.1f}", f"{ratio:.4f}"]
    return [*row, str(found.get("preemptions", "")), str(found.get("moved") or ""), spent]


def passing(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """Mean bounded slowdown with and without backfill."""
    rules = (backfill.FCFS, *backfill.POLICIES)
    calls: list[Call] = [
        (backfill.run, (seed, load, rule))
        for load in backfill.LOADS
        for rule in rules
        for seed in backfill.SEEDS
    ]
    runs = sorted(run_all(calls, asked.cores), key=lambda run: (run["load"], run["rule"], run["seed"]))
    rows = [
        ["load", "rule", "mean bounded slowdown", "FCFS / it", "longest wait h", "protected", "late", "seeds"]
    ]
    for load in backfill.LOADS:
        base = mean(_chosen(runs, load, backfill.FCFS), "slowdown")
        for rule in rules:
            mine = _chosen(runs, load, rule)
            slow = mean(mine, "slowdown")
            row = [f"{load}", rule, f"{slow:.1f}", f"{base / slow:.0f}"]
            row.append(f"{max(run['longest_wait_s'] for run in mine) / 3600:.1f}")
            kept = [str(sum(run.get(name, 0) for run in mine)) for name in ("protected", "late")]
            rows.append([*row, *kept, str(len(mine))])
    return runs, rows


def dates(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """Deadlines missed, on clusters of five sizes."""
    calls: list[Call] = [(deadlines.run, call) for call in deadlines.calls(asked.traces)]
    runs = run_all(calls, asked.cores)
    runs.sort(key=lambda run: (run["trace"], -run["nodes"], deadlines.ORDERS.index(run["rule"]), run["seed"]))
    rows = [["trace", "cluster", "rule", "missed", "mean JCT s", "seeds", "s per run"]]
    for trace, nodes, rule in dict.fromkeys((run["trace"], run["nodes"], run["rule"]) for run in runs):
        mine = [run for run in runs if (run["trace"], run["nodes"], run["rule"]) == (trace, nodes, rule)]
        row = [trace, f"{nodes}x{deadlines.GPUS}", rule, f"{mean(mine, 'share'):.2%}"]
        rows.append([*row, f"{mean(mine, 'jct_s'):.0f}", str(len(mine)), f"{mean(mine, 'cpu_s'):.1f}"])
    return runs, rows


def kinds(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """Mean completion times on three kinds of card, by how many jobs arrive in an hour."""
    chosen = [part for part in asked.parts.split(",") if part]
    calls: list[Call] = [(gavel.run, call) for call in gavel.calls(asked.traces, chosen)]
    runs = run_all(calls, asked.cores)
    keys = ("part", "rule", "order", "restart_s", "sigma", "rate")
    runs.sort(key=lambda run: ([str(run["part"])], *(run[key] for key in keys[1:]), run["seed"]))
    rows = [
        ["part", "speeds, moves", "order", "restart s", "σ", "jobs an hour", "mean JCT h", "bar", "published"]
    ]
    rows[0] += ["moves a job", "seeds", "s per run"]
    for key in dict.fromkeys(tuple(run[name] for name in keys) for run in runs):
        mine = [run for run in runs if tuple(run[name] for name in keys) == key]
        row = [*map(str, key), f"{mean(mine, 'jct_h'):.2f}", gavel.bar_of(mine[0])]
        row += [f"{gavel.PUBLISHED[mine[0]['rate']]}", f"{mean(mine, 'moves'):.2f}"]
        rows.append([*row, str(len(mine)), f"{mean(mine, 'cpu_s'):.0f}"])
    return runs, rows


def bringings(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """What stays idle while work waits, and what is paid for."""
    calls: list[Call] = [(call, (asked.traces, *values)) for call, *values in bringing.RUNS]
    found = run_all(calls, asked.cores)
    order = [(call.__name__, *values) for call, *values in bringing.RUNS]
    runs = sorted(found, key=lambda run: order.index(bringing.key_of(run)))
    rows = [
        ["part", "where", "rule", "idle while work waits", "hired GPU h", "mean JCT s", "moves", "s per run"]
    ]
    for run in runs:
        row = [run["part"], run.get("placement") or f"{run['mix']}, {run['trace']}", run["rule"]]
        row += [f"{run['idle']:.2%}" if "idle" in run else ""]
        row += [f"{run['hired_gpu_h']:.0f}" if "hired_gpu_h" in run else ""]
        rows.append([*row, f"{run['jct_s']:.0f}", f"{run['moved']}", f"{run['cpu_s']:.1f}"])
    return runs, rows


def shares(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """What a burst costs the others."""
    calls: list[Call] = [
        (fairness.run, (seed, load, rule))
        for load in fairness.LOADS
        for rule in fairness.POLICIES
        for seed in fairness.SEEDS
    ]
    runs = sorted(run_all(calls, asked.cores), key=lambda run: (run["load"], run["rule"], run["seed"]))
    rows = [["load", "rule", "seed", "worst other tenant: without", "with", "ratio", "who bursts: with"]]
    for run in runs:
        row = [f"{run['load']}", run["rule"], f"{run['seed']}", f"{run['calm']:.3f}"]
        rows.append([*row, f"{run['pressed']:.3f}", f"{run['ratio']:.2f}", f"{run['burster']:.1f}"])
    return runs, rows


def paces(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """CPU seconds of one core for whole replays."""
    runs = [
        pace.replay_philly(asked.traces),
        pace.replay_openb(asked.traces, "default", "best_fit"),
        pace.replay_openb(asked.traces, "default", "fgd"),
        pace.replay_openb(asked.traces, "gpuspec20", "fgd_learnt"),
        pace.replay_openb(asked.traces, "gpuspec20", "foresight_learnt"),
        pace.replay_short_jobs(asked.short_jobs),
    ]
    bars = ("5", "6", "15", "15", "15", f"{300 * asked.short_jobs / pace.MANY:g}")
    rows = [["replay", "jobs", "CPU s", "bar"]]
    for run, bar in zip(runs, bars, strict=True):
        rows.append([run["replay"], f"{run['jobs']:,}", f"{run['cpu_s']:.1f}", f"<= {bar}"])
    return runs, rows


def _chosen(runs: Runs, load: float, rule: str) -> Runs:
    return [run for run in runs if run["load"] == load and run["rule"] == rule]


def advice(asked: argparse.Namespace) -> tuple[Runs, Rows]:
    """Advice about further machines against a replay with them; the bar is a tenth."""
    runs = capacity.run(asked.traces)
    rows = [["asked at", "more", "jobs", "guessed", "wait before s", "advised s", "true s", "off", "p90 off"]]
    for run in runs:
        row = [f"{run['moment']:.0%}", f"{run['more']}", f"{run['jobs']}", f"{run['guessed']}"]
        row += [f"{run[name]:.0f}" for name in ("before_p50_s", "advised_p50_s", "true_p50_s")]
        rows.append([*row, f"{run['off_p50']:.1%}", f"{run['off_p90']:.1%}"])
    return runs, rows


PARTS: dict[str, Callable[[argparse.Namespace], tuple[Runs, Rows]]] = {
    "q1": placement,
    "q2": order,
    "backfill": passing,
    "deadlines": dates,
    "gavel": kinds,
    "moves": bringings,
    "fairness": shares,
    "pace": paces,
    "capacity": advice,
}
