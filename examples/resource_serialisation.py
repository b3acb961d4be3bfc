"""What calls ask for decides how many run at once: four calls of two CPUs each on a worker with four go two by two."""

from __future__ import annotations

import os
import time

import dray

# A private hub's worker offers four cores, whatever this machine has.
os.environ.setdefault("DRAY_WORKER_CPUS", "4")
os.environ.setdefault("DRAY_WORKER_SLOTS", "4")


def work(number: int) -> tuple[float, float]:
    """Something that takes a while; gives when it began and when it ended."""
    began = time.time()
    time.sleep(0.5)
    return began, time.time()


def count_overlaps(spans: list[tuple[float, float]]) -> int:
    """How many of them ran at the same moment, at most."""
    return max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)


def main() -> None:
    with dray.connect() as hub:
        calls = [hub.submit(work, number, resources={"cpu": 2}) for number in range(4)]
        spans = dray.gather(*calls, timeout=120)
        print(f"{len(spans)} calls of 2 CPUs each, at most {count_overlaps(spans)} at once")


if __name__ == "__main__":
    main()
