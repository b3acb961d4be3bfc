"""Run the quality benchmarks and write their tables.

python -m benchmarks.quality --traces DIR [--only q1|q2|backfill|deadlines|gavel|moves|fairness|pace|capacity]
    [--seeds 42,43] [--parts x1,x1a] [--cores N]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.quality import openb, pace
from benchmarks.quality.tables import PARTS, Rows, Runs

RESULTS = Path(__file__).parents[1] / "results" / "quality"


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; each part writes its own files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--seeds", default=",".join(map(str, openb.SEEDS)), help="of the placement part")
    parser.add_argument("--variants", default=",".join(openb.VARIANTS), help="of the placement part")
    parser.add_argument("--strategies", default=",".join(openb.RULES), help="of the placement part")
    parser.add_argument("--parts", default="", help="of the part on kinds of card: x1,x1a,…; all of them")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--short-jobs", type=int, default=pace.MANY, help="of the pace part")
    parser.add_argument("--label", default="", help="appended to the names of the result files")
    asked = parser.parse_args(argv)
    words = f"python -m benchmarks.quality {' '.join(_public(sys.argv[1:] if argv is None else argv))}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if asked.only in (None, name):
            _write(f"{name}{asked.label}", words, *part(asked))
    return 0


def _public(words: Sequence[str]) -> Iterator[str]:
    """The command line without where the traces happen to lie on this machine."""
    hide = False
    for word in words:
        yield "DIR" if hide else word
        hide = word == "--traces"


def _write(name: str, words: str, runs: Runs, rows: Rows) -> None:
    head, *body = rows
    lines = [" | ".join(row) for row in (head, ["---"] * len(head), *body)]
    text = f"`{words}`\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    document = {"command": words, "runs": runs}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
