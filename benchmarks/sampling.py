"""What a worker pays for looking at what its attempts use: eight of them, each with processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.agent.usage.nvml import CardReading
from dray.agent.usage.sampling import Held, Sampler
from dray.config import AgentConfig

ATTEMPTS, CHILDREN = 8, 4
HELD_BYTES = 64 << 20
# As a training with loaders of its own: a process that holds memory, and some that share it.
PROGRAM = f"""
import os, sys
held = bytearray(b"x" * {HELD_BYTES})
if all(os.fork() for _ in range({CHILDREN})):
    sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.read()
"""


@contextlib.contextmanager
def _running(count: int) -> Iterator[list[int]]:
    """So many programs, each in a session of its own."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            one = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
            started.append(one)
            assert one.stdout is not None
            one.stdout.readline()
        yield [one.pid for one in started]
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def measure(quick: bool) -> dict[str, Figure]:
    looks = 5 if quick else 200
    every_s = AgentConfig(home=Path()).sample_s
    with tempfile.TemporaryDirectory() as folder, _running(ATTEMPTS) as pids:
        sampler = Sampler(Path(folder) / "usage.json", every_s)
        held = [Held(f"1-{number}", pid, (number,)) for number, pid in enumerate(pids)]
        cards = {number: CardReading(number, 0.5, 1 << 30) for number in range(ATTEMPTS)}
        sampler.look(held, cards, 0.0)
        began = time.thread_time()
        for number in range(1, looks + 1):
            # As far apart as they are in a worker: what is looked at once a minute is so here too.
            sampler.look(held, cards, number * every_s)
        look_s = (time.thread_time() - began) / looks
        table = sum(name.isdigit() for name in os.listdir("/proc"))
    tell(f"{look_s * 1000:.2f} ms a look, {table} processes on the machine")
    return {
        "share": Figure(
            f"a worker looks every {every_s:g} s at what {ATTEMPTS} attempts of {CHILDREN + 1} processes use",
            "% of a core",
            100 * look_s / every_s,
            bars=[Bar(at_most=0.5)],
            note=f"{look_s * 1000:.2f} ms a look; {table} processes on the machine",
        )
    }
