"""Runs the commands that the documentation shows, page by page, with the real `dray` in a home of their own.

On the first pages that people read `dray` starts from nothing, on the others it is forked from an interpreter that has
loaded it (`tests/warm.py`).

A `console` block holds commands after `$ ` and their output; a `sh` block holds commands alone. The blocks of a page
run in order in one shell. A block under `<!-- not run: REASON -->` is left out. A command may fail only if the page
asks for its exit code next (`$ echo $?`).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from tests import warm

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
ANYTHING = "..."


class Block(NamedTuple):
    kind: str
    body: str
    reason: str


class Step(NamedTuple):
    """One command and the output that the page shows; None where it shows none."""

    command: str
    shown: list[str] | None


class Outcome(NamedTuple):
    step: Step
    code: int
    output: list[str]


def read_blocks(text: str) -> list[Block]:
    return [Block(found["kind"], found["body"], found["reason"] or "") for found in BLOCK.finditer(text)]


def read_steps(block: Block) -> list[Step]:
    if block.kind == "sh":
        return [Step(block.body, None)]
    steps: list[Step] = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], []))
        elif line.startswith("> ") and steps and not steps[-1].shown:
            steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", [])
        else:
            assert steps, f"a console block begins with a command, this one with {line!r}"
            shown = steps[-1].shown
            assert shown is not None
            shown.append(line)
    return steps


def write_script(steps: list[Step], mark: str) -> str:
    """One shell for all: the mark before each command's end carries its exit code, which the next one still sees."""
    lines = []
    for number, step in enumerate(steps):
        lines += [
            f"echo {mark} begin {number}",
            f"restore; {step.command}",
            f"code=$?; echo; echo {mark} end $code",
        ]
    return "\n".join(["code=0; restore() { return $code; }", *lines])


def run_page(steps: list[Step], home: Path, forked: bool) -> list[Outcome]:
    mark = "@@page@@"
    out = home / "page.out"
    folder = home / "project"
    folder.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    env.pop(
        "PYTHONUNBUFFERED", None
    )  # most people's shells have none, and the order of lines must not hang on it
    env |= {
        "HOME": str(home),
        "LOGNAME": "ada",
        "USER": "ada",
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        "COLUMNS": "200",
        # Pages run side by side: each hub takes a port of its own; its agents and its estimates come at once.
        "DRAY_HUB_PORT": "0",
        "DRAY_WORKER_RECONNECT_MAX_S": "0.5",
        "DRAY_HUB_ESTIMATE_EVERY_S": "0.5",
        # Started when there are calls: most pages have none.
        "DRAY_WORKER_RUNNERS": "0",
        "EXAMPLES": str(ROOT / "examples"),
    }
    (home / "bin").mkdir(exist_ok=True)
    if forked and warm.write_command(home / "bin", env):
        env["PATH"] = f"{home / 'bin'}:{env['PATH']}"
    with out.open("wb") as file:
        # Into a file: what a page leaves in the background would keep a pipe open.
        subprocess.run(
            ["bash", "-c", write_script(steps, mark)],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=100,
            check=False,
        )
    parts = re.findall(
        rf"^{mark} begin \d+\n(.*?)^{mark} end (\d+)$", out.read_text(), re.MULTILINE | re.DOTALL
    )
    return [
        Outcome(step, int(code), text.rstrip("\n").splitlines())
        for step, (text, code) in zip(steps, parts, strict=False)
    ]


def end_processes(home: Path) -> None:
    """Whatever the page left running names this folder, which is the page's alone; kill until none is left."""
    deadline = time.monotonic() + 60
    while (left := list_processes(home)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)


def list_processes(home: Path) -> list[psutil.Process]:
    """One that has ended and is not reaped yet has no command line any more, and no children either."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(home) in word for word in process.cmdline()):
                found += [process, *process.children(recursive=True)]
    return found


def shape(line: str) -> str:
    """A line without what differs from run to run: ids, numbers, times, addresses, the width of columns."""
    # On a busy machine `dray up` does not wait for its worker: both lines are right.
    line = re.sub(r"^worker  \S+(?:: \d+ slots.*| is still starting.*)$", "WORKER", line)
    # A bar that has seen the end at its first look knows no rate.
    line = re.sub(r"tasks done, .*$", "tasks done", line)
    line = re.sub(r"\bdray_[0-9a-f]{8}_[\w-]+", "TOKEN", line)
    line = re.sub(r"#code=[\w-]+", "#code=CODE", line)
    line = re.sub(r"https?://[\w.:-]+", "URL", line)
    line = re.sub(r"(?:/[\w.-]+)+|~/[\w./-]+", "PATH", line)
    line = re.sub(r"\b[a-f0-9]{16}\b", "ETAG", line)
    line = re.sub(r"\b[a-z0-9]{12}\b", "ID", line)
    line = re.sub(r"\b[a-f0-9]{8}\b", "ID", line)
    line = re.sub(r"\d[\w.,:%/-]*", "#", line)
    # A span may be over a whole minute: how many parts it is told in differs from run to run.
    line = re.sub(r"# (?:d|h|min|s)(?: # (?:h|min|s))*\b", "SPAN", line)
    return " ".join(line.split())


def compare(outcome: Outcome) -> str:
    """What is wrong with one command, or nothing: each line shown must come, in order, and `...` stands for any."""
    shown = outcome.step.shown
    if not shown:
        return ""
    # Progress is told once or several times, as the machine is quick or slow.
    actual = [line for line, _ in groupby(shape(line) for line in outcome.output if line.strip())]
    position, loose = 0, False
    for line, _ in groupby(shown, key=lambda line: line if line.strip() == ANYTHING else shape(line)):
        if not line.strip():
            continue
        if line.strip() == ANYTHING:
            loose = True
            continue
        wanted = shape(line)
        found = next((at for at in range(position, len(actual)) if actual[at] == wanted), -1)
        if found < 0 or (found > position and not loose):
            there = actual[position] if position < len(actual) else "nothing more"
            return f"{outcome.step.command}\n  the page shows {wanted!r}\n  there is       {there!r}"
        position, loose = found + 1, False
    if position < len(actual) and not loose:
        return f"{outcome.step.command}\n  there is more than the page shows: {actual[position]!r}"
    return ""


@pytest.fixture
def play(short_tmp: Path) -> Iterator[Callable[..., tuple[int, list[str]]]]:
    """`play(text)` runs a page and gives (commands run, everything that is wrong)."""

    def run(text: str, forked: bool = True) -> tuple[int, list[str]]:
        blocks = [
            block for block in read_blocks(text) if block.kind in ("sh", "console") and not block.reason
        ]
        steps = [step for block in blocks for step in read_steps(block)]
        outcomes = run_page(steps, short_tmp, forked)
        wrong = [text for text in map(compare, outcomes) if text]
        for outcome, after in zip(outcomes, [*steps[1:], Step("", None)], strict=False):
            if outcome.code and not after.command.startswith("echo $?"):
                said = "\n    ".join(outcome.output[-8:])
                wrong.append(f"{outcome.step.command}\n  exited with {outcome.code}:\n    {said}")
        if len(outcomes) != len(steps):
            wrong.append(f"only {len(outcomes)} of {len(steps)} commands were run")
        return len(steps), wrong

    yield run
    end_processes(short_tmp)
