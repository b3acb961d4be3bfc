"""One client of the call soak: maps after maps until it is killed. `python call_soak_client.py LEDGER SALT`.

What it was told is written down line by line before it goes on, so that a kill -9 loses nothing that it had heard:
`job ID SIZE`, `recorded ID` once the hub has all of a map's calls, `heard ID INDEX VALUE` for each result.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import dray
from dray.errors import NoSpace

LEAST, MOST = 20, 400
# Every third map carries this much with each call, there and back: more than goes inside a message.
LOAD_BYTES = 100_000
AWAY_S = 60.0
AGAIN_S = 0.2


def work(number: int, salt: int, pause_s: float, load: bytes) -> int | bytes:
    time.sleep(pause_s)
    value = number * number + salt
    return str(value).encode().ljust(len(load), b".") if load else value


def unload(value: int | bytes) -> int:
    """The number that a result stands for."""
    return int(value.rstrip(b".")) if isinstance(value, bytes) else value


def connect() -> dray.Hub:
    """The hub may just be down: it is dialled until it is back."""
    deadline = time.monotonic() + AWAY_S
    while True:
        try:
            hub = dray.connect()
            hub.ping()
        except dray.HubUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return hub


def run(ledger: Path, salt: int) -> None:
    rng = random.Random(salt)
    with ledger.open("a", buffering=1) as file, connect() as hub:
        while True:
            size, heavy = rng.randint(LEAST, MOST), rng.random() < 1 / 3
            pauses = [rng.choice((0.0, 0.0, 0.001, 0.03)) for _ in range(size)]
            loads = [rng.randbytes(LOAD_BYTES) if heavy else b"" for _ in range(size)]
            try:
                results = hub.map(work, range(size), [salt] * size, pauses, loads, losses=1000, retries=1000)
                file.write(f"job {results.job} {size} {salt}\n")
                results.await_recorded()
            except NoSpace:
                # The hub's disk is full: what it took goes on, what it did not was never promised.
                time.sleep(AGAIN_S)
                continue
            file.write(f"job {results.job} {size} {salt}\n")
            file.write(f"recorded {results.job}\n")
            for index, value in enumerate(results):
                file.write(f"heard {results.job} {index} {unload(value)}\n")
            file.write(f"done {results.job}\n")


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
