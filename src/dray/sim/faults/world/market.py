"""Where machines of a world come from and what that costs: in a share of the worlds of its own, by draws of its own.

None of the worlds that are kept because they showed a bug before there were providers has any: they stay as they were.
"""

from __future__ import annotations

import random
from typing import Any

from dray.core.model.policies.policy import Provider

MARKET_FROM, MARKETS = 10**9, 0.3
# Within minutes, where it takes hours elsewhere; a tenth is what is taken for spoilt where nothing is known.
QUICK: dict[str, Any] = {
    "provider_bad": (0.25, 0.2),
    "provider_degraded": (0.16, 0.13),
    "provider_faults": 1,
    "provider_half_ms": 60_000,
    "provider_look_ms": 5_000,
}
NAMES = ("near", "far", "")


def has_providers(seed: int) -> bool:
    """Whether machines of this world have providers. The number is chosen for those that are kept, as above."""
    drawn = random.Random(f"providers 623660 in {seed}").random()  # chance, no secret
    return seed >= MARKET_FROM and drawn < MARKETS


def labels_of(seed: int, worker: str) -> dict[str, str]:
    """What a machine says of itself."""
    if not has_providers(seed):
        return {}
    name = random.Random(f"provider of {worker} in {seed}").choice(NAMES)
    return {"provider": name} if name else {}


def draw_providers(rng: random.Random) -> dict[str, Provider]:
    """A price list: of one, of both, or of none."""
    drawn = {
        "near": Provider(price_per_hour=rng.choice([0, 0, 8])),
        "far": Provider(
            price_per_gpu_hour={"H100": rng.choice([0.5, 3, 7])}, price_per_hour=rng.choice([0, 2]), spot=True
        ),
    }
    return {name: one for name, one in drawn.items() if rng.random() < 0.8}


def draw_objective(rng: random.Random) -> dict[str, Any]:
    """What matters to a job."""
    name = rng.choice(["cost", "performance", "reliability", "latency"])
    return {"cheapest_in_time": True} if rng.random() < 0.3 else {name: rng.choice([0, 1, 30])}
