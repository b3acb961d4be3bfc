"""A parameter sweep: one function over a grid of settings, as one array job, results as they come."""

from __future__ import annotations

import itertools
import math

import dray


def evaluate(rate: float, width: int) -> dict[str, float]:
    """Train a model with these settings; here a formula stands for it."""
    loss = (math.log10(rate) + 3) ** 2 + (width - 64) ** 2 / 4096
    return {"rate": rate, "width": width, "loss": loss}


def main() -> None:
    grid = list(itertools.product([1e-4, 1e-3, 1e-2], [32, 64, 128]))
    rates, widths = zip(*grid, strict=True)
    with dray.connect() as hub:
        results = hub.map(evaluate, rates, widths, cpus=1, name="sweep", ordered=False)
        best: dict[str, float] | None = None
        for result in results:
            if best is None or result["loss"] < best["loss"]:
                best = result
        assert best is not None
        print(f"{len(grid)} settings in job {results.job}")
        print(f"best: rate {best['rate']:g}, width {best['width']:g}, loss {best['loss']:.3f}")


if __name__ == "__main__":
    main()
