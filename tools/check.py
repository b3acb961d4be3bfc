"""Run every check of the project, all of them even when one fails, and end with a summary.

The checks run side by side and report in a fixed order. `--write` regenerates the generated files first;
`--fix` formats, mends and regenerates instead of checking.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CODE = ("src", "tests", "tools", "benchmarks", "examples")


class Check(NamedTuple):
    name: str
    command: tuple[str, ...]


class Outcome(NamedTuple):
    check: Check
    code: int
    output: str
    seconds: float


def tool(name: str) -> str:
    return str(BIN / name)


def script(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, f"tools/{name}.py", *arguments)


def checks() -> list[Check]:
    code = tuple(folder for folder in CODE if any((ROOT / folder).rglob("*.py")))
    return [
        Check("format", (tool("ruff"), "format", "--check", "--output-format", "concise", ".")),
        Check("lint", (tool("ruff"), "check", "--output-format", "concise", ".")),
        Check("types", (tool("mypy"), *code, "hatch_build.py")),
        Check("layers", (tool("lint-imports"), "--config", "pyproject.toml")),
        Check("purity", script("check_purity")),
        Check("state", script("check_state")),
        Check("reads", script("check_reads")),
        Check("sizes", script("check_sizes")),
        Check("generated", script("check_generated")),
        Check("words", script("check_words")),
        Check("protos", (tool("buf"), "lint")),
        Check("breaking", (tool("buf"), "breaking", "--against", "tests/golden/protos.binpb")),
        Check("web", script("check_web")),
    ]


def fixes() -> list[Check]:
    return [
        Check("generate", script("check_generated", "--write")),
        # What it cannot mend is for `./dev check` to report, after the formatter has had its turn.
        Check("mend", (tool("ruff"), "check", "--fix", "--exit-zero", "--quiet", ".")),
        Check("format", (tool("ruff"), "format", ".")),
        Check("web", script("check_web", "--write")),
    ]


def run(check: Check) -> Outcome:
    started = time.monotonic()
    done = subprocess.run(
        check.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Outcome(check, done.returncode, done.stdout.strip(), time.monotonic() - started)


def report(outcomes: Sequence[Outcome]) -> int:
    """Output of what passed without remarks is noise: it stays out."""
    failed = [outcome for outcome in outcomes if outcome.code]
    for outcome in outcomes:
        if outcome.code or "warning" in outcome.output:
            print(f"--- {outcome.check.name}: {' '.join(outcome.check.command[:2])}\n{outcome.output}\n")
    for outcome in outcomes:
        verdict = f"FAILED ({outcome.code})" if outcome.code else "ok"
        print(f"{outcome.check.name:<10} {verdict:<11} {outcome.seconds:5.1f} s")
    print(f"{len(failed)} of {len(outcomes)} failed" if failed else f"all {len(outcomes)} passed")
    return 1 if failed else 0


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ["--write"], ["--fix"]):
        print(f"unknown arguments: {' '.join(arguments)} (there is --write, and ./dev fix)", file=sys.stderr)
        return 2
    if arguments == ["--fix"]:
        return report([run(fix) for fix in fixes()])
    if arguments == ["--write"]:
        subprocess.run(script("check_generated", "--write"), cwd=ROOT, check=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        return report(list(pool.map(run, checks())))


if __name__ == "__main__":
    sys.exit(main())
