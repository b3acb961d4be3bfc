"""Placement rules that papers compare with, on the product's own machinery: only the score is theirs.

They exist here alone; entering them into the table of strategies is left to the process that runs the benchmark.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.remaining import Devices
from dray.core.scheduling.placement.placer import STRATEGIES, Placer
from dray.core.scheduling.placement.scorers import Sight, Wish

CPU, GPU, SHIFT = 128_000, 8_000, 1 << 20


class DotProduct(Placer):
    """The worker whose free cores and cards are least in line with what is asked for."""

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        ask = wish.ask
        cpu = sight.free_cpu / CPU * (ask.cpu_milli / CPU)
        gpu = sight.free_milli / GPU * (ask.gpus * ask.gpu_milli / GPU)
        scores: Numbers = np.trunc(100 * (1 - (cpu + gpu) / 2)).astype(np.int64) + SHIFT
        return scores


def make_random(seed: int) -> type[Placer]:
    """Any worker that fits, drawn from a seed."""
    draws = np.random.default_rng(seed)

    class Random(Placer):
        """Another order of the workers for every ask, and any of their cards that fits."""

        def score(self, sight: Sight, wish: Wish) -> Numbers:
            return draws.integers(0, 1 << 30, size=len(sight), dtype=np.int64)

        def fit(self, row: int, ask: Ask, owner: str) -> Devices | None:
            devices = self.rooms.fit(row, ask, owner)
            if devices is None or not ask.gpus or ask.gpu_milli == WHOLE:
                return devices
            left = self.rooms.left(row)
            open_cards = [
                card.index for card in left.cards if WHOLE - left.used.get(card.index, 0) >= ask.gpu_milli
            ]
            return (open_cards[int(draws.integers(len(open_cards)))],)

    return Random


def enter(seed: int) -> None:
    """Let this process's policies name them."""
    STRATEGIES["dot_product"] = DotProduct
    STRATEGIES["random"] = make_random(seed)
