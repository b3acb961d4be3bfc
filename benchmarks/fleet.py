"""Simulated workers as seen from a benchmark: one or more processes full of them, driven by lines."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster

STOP_S = 10.0
# One token may hold half of all connections that a hub has, and 20,000 descriptors are all that some machines give.
OF_TOKEN = 5_000


class FleetProcesses:
    """Ask all processes the same and put their answers together."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command to all, then read all answers: numbers are summed, percentiles and moments are the worst."""
        for process in self._processes:
            assert process.stdin is not None  # asked for when it was started
            process.stdin.write(command + "\n")
            process.stdin.flush()
        answers = [self._answer(process) for process in self._processes]
        merged: dict[str, Any] = {}
        for name in answers[0]:
            values = [answer[name] for answer in answers if answer[name] is not None]
            worst = name.startswith(("beat_p", "complete_at"))
            merged[name] = (max(values) if worst else sum(values)) if values else None
        return merged

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError, ValueError):
                assert process.stdin is not None  # as above
                process.stdin.write("quit\n")
                process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None  # asked for when it was started
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of simulated workers ended (exit {process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def running_fleet(
    cluster: Cluster,
    workers: int,
    slots: int = 1,
    beat_s: float = 10.0,
    first: int = 0,
) -> Iterator[FleetProcesses]:
    """Simulated workers numbered from `first` on, not yet connected, gone when the block ends."""

    def make_token() -> str:
        return str(cluster.request("POST", "/tokens", {"scopes": ["admin"]})["token"])

    with running_fleet_at(cluster.url, make_token, workers, slots, beat_s, first) as fleet:
        yield fleet


@contextlib.contextmanager
def running_fleet_at(
    url: str, make_token: Callable[[], str], workers: int, slots: int, beat_s: float, first: int
) -> Iterator[FleetProcesses]:
    """The same at any hub. The tokens are an administrator's: that of a worker speaks for one alone."""
    started: list[subprocess.Popen[str]] = []
    fleet = FleetProcesses(started)
    try:
        for begin in range(first, first + workers, OF_TOKEN):
            count = min(OF_TOKEN, first + workers - begin)
            words = [url, make_token(), begin, count, slots, beat_s]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.fleet_process", *map(str, words)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=Path(__file__).parent.parent,
                )
            )
        yield fleet
    finally:
        fleet.close()
