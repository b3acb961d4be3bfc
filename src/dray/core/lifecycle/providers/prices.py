"""What work costs where it runs: the price list of the policy applied to what an attempt holds.

Pure, and knows no state. Money has no currency: it is counted in whatever the price list is written in, in records as
millionths. The surprising rule: a type of card that a price list leaves out costs as much as the dearest that it names,
since what nobody has priced must not win for being free; a provider without any price costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.core.lifecycle.state.columns import Offer
from dray.core.model.policies.policy import Policy, Provider
from dray.core.model.records.records import Attempt
from dray.core.model.specs.resources import WHOLE, Ask

LABEL = "provider"
MICRO = 1_000_000
HOUR_MS = 3_600_000
# Whoever asks for no cores pays for one: the machine is paid for all the same.
LEAST_MILLI = 1000
# Sums of money stay below it, whatever prices and spans are said to be: they are kept in 64 bits.
MOST_MONEY = 1 << 62


def provider_of(offer: Offer) -> str:
    """The provider of a class of workers; empty where it names none."""
    return next((value for name, value in offer.labels if name == LABEL), "")


def card_price(provider: Provider, words: tuple[str, ...]) -> tuple[float, bool]:
    """The price of an hour of one card that goes by these words, and whether the list names it.

    Of several entries that mean it the longest counts: `A100-80GB` before `A100`.
    """
    prices = provider.price_per_gpu_hour
    found = max(
        (name for name in prices if name.lower() in words), key=lambda name: (len(name), name), default=""
    )
    return (prices[found], True) if found else (max(prices.values(), default=0.0), not prices)


def part_held(ask: Ask, total_gpus: float, total_cpu_milli: float) -> float:
    """The part of a whole worker that a task takes: by its cards where it asks for any, else by its cores."""
    if ask.gpus:
        return min(1.0, ask.gpus * ask.gpu_milli / WHOLE / total_gpus) if total_gpus > 0 else 1.0
    return min(1.0, max(ask.cpu_milli, LEAST_MILLI) / total_cpu_milli) if total_cpu_milli > 0 else 1.0


def price_per_hour(provider: Provider, words: tuple[str, ...], ask: Ask, part: float) -> float:
    """What a task pays an hour: for its cards where those have prices, else its part of the whole worker."""
    if ask.gpus and provider.price_per_gpu_hour:
        return card_price(provider, words)[0] * ask.gpus * ask.gpu_milli / WHOLE
    return provider.price_per_hour * part


def rate_of(policy: Policy, offer: Offer, ask: Ask, total_gpus: int, total_cpu_milli: int) -> int:
    """The same on a worker, in millionths; 0 where its provider has no price."""
    provider = policy.providers.get(provider_of(offer))
    if provider is None:
        return 0
    part = part_held(ask, total_gpus, total_cpu_milli)
    return round(price_per_hour(provider, offer.gpu_words, ask, part) * MICRO)


def spent_by(attempt: Attempt) -> int:
    """What an attempt that has ended has cost, in millionths, at the price it was given out at."""
    return cost_of_span(attempt.rate, attempt.span_ms) if attempt.started and attempt.rate else 0


def cost_of_span(rate: int, span_ms: int) -> int:
    """What so long costs at a rate, in millionths."""
    return min(MOST_MONEY, rate * max(0, span_ms) // HOUR_MS)


def spell_money(micro: float) -> float:
    """Money as documents spell it."""
    return round(micro / MICRO, 6)


def is_priced(providers: Mapping[str, Provider]) -> bool:
    """Whether anything costs anything."""
    return any(one.price_per_hour or one.price_per_gpu_hour for one in providers.values())
