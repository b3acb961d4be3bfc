"""Run the quality benchmarks and write their tables.

python -m benchmarks.quality --traces DIR [--only q1|q2] [--seeds 42,43] [--cores N]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.quality import muri, openb

RESULTS = Path(__file__).parents[1] / "results" / "quality"
STRATEGIES = ("random", "dot_product", "best_fit", "fgd", "fgd_learnt")
Call = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; each part writes its own file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", choices=("q1", "q2"))
    parser.add_argument("--seeds", default=",".join(map(str, openb.SEEDS)))
    parser.add_argument("--variants", default=",".join(openb.VARIANTS))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--label", default="", help="appended to the names of the result files")
    asked = parser.parse_args(argv)
    words = f"python -m benchmarks.quality {' '.join(_public(sys.argv[1:] if argv is None else argv))}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    if asked.only != "q1":
        _write(f"q2{asked.label}", words, *_order(asked))
    if asked.only != "q2":
        _write(f"q1{asked.label}", words, *_placement(asked))
    return 0


def _public(words: Sequence[str]) -> Iterator[str]:
    """The command line without where the traces happen to lie on this machine."""
    hide = False
    for word in words:
        yield "DIR" if hide else word
        hide = word == "--traces"


def _run(calls: list[Call], cores: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(cores) as pool:
        for done in as_completed([pool.submit(call, *values) for call, values in calls]):
            found.append(done.result())
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def _placement(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], list[list[str]]]:
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    chosen = asked.strategies.split(",")
    calls: list[Call] = [
        (
            openb.measure,
            (asked.traces, variant, name.removesuffix("_learnt"), seed, not name.endswith("_learnt")),
        )
        for variant in asked.variants.split(",")
        for name in chosen
        for seed in seeds
    ]
    runs = sorted(_run(calls, asked.cores), key=lambda run: (run["variant"], run["strategy"], run["seed"]))
    rows = [["trace", "rule", "unallocated %", "published", "pass", "beat", "seeds", "s per run"]]
    for variant in asked.variants.split(","):
        for name in chosen:
            mine = [run for run in runs if run["variant"] == variant and run["strategy"] == name]
            published = openb.PUBLISHED[variant]
            is_fgd = name.startswith("fgd")
            mean = sum(run["unallocated"] for run in mine) / len(mine)
            pace = sum(run["cpu_s"] for run in mine) / len(mine)
            row = [variant, name, f"{mean:.2f}", f"{published[name.removesuffix('_learnt')]:.2f}"]
            row += [f"<= {published['pass']}", f"<= {published['beat']}"] if is_fgd else ["± 0.35", ""]
            rows.append([*row, str(len(mine)), f"{pace:.1f}"])
    return runs, rows


def _order(asked: argparse.Namespace) -> tuple[list[dict[str, Any]], list[list[str]]]:
    runs = []
    rows = [["trace", "rule", "mean JCT ks", "published", "ratio", "preemptions", "s per run"]]
    for name in muri.TRACES:
        jobs = muri.read(asked.traces, name)
        for rule, key in muri.KEYS.items():
            found = {"jct_ks": muri.replay_published(jobs, key)}
            runs.append({"trace": name, "rule": f"{rule} published loop", **found})
            rows.append(_row(name, f"{rule}, published loop", found, muri.PUBLISHED[rule][name]))
        for rule in muri.POLICIES:
            if name in muri.PUBLISHED[rule]:
                found = muri.replay_product(jobs, rule)
                runs.append({"trace": name, "rule": rule, **found})
                rows.append(_row(name, rule, found, muri.PUBLISHED[rule][name]))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return runs, rows


def _row(trace: str, rule: str, found: dict[str, Any], published: float) -> list[str]:
    ratio = found["jct_ks"] / published
    spent = f"{found['cpu_s']:.1f}" if "cpu_s" in found else ""
    row = [trace, rule, f"{found['jct_ks']:.1f}", f"{published:.1f}", f"{ratio:.4f}"]
    return [*row, str(found.get("preemptions", "")), spent]


def _write(name: str, words: str, runs: list[dict[str, Any]], rows: list[list[str]]) -> None:
    head, *body = rows
    lines = [" | ".join(row) for row in (head, ["---"] * len(head), *body)]
    text = f"`{words}`\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    document = {"command": words, "runs": runs}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
