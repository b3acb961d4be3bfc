"""joblib with dray behind it: the same `Parallel`, on all the machines that the hub knows."""

from __future__ import annotations

import joblib

import dray
import dray.joblib  # registers the backend


def count_primes(first: int, end: int) -> int:
    """How many primes there are from `first` to below `end`."""
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(max(first, 2), end))


def main() -> None:
    with dray.connect() as hub, joblib.parallel_config("dray", hub=hub):
        spans = [(first, first + 1000) for first in range(0, 20_000, 1000)]
        counts = joblib.Parallel()(joblib.delayed(count_primes)(first, end) for first, end in spans)
    print(f"{sum(counts)} primes below 20000")


if __name__ == "__main__":
    main()
