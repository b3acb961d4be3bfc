"""Providers as people read them: prices from the policy, everything else as it was measured. Pure."""

from __future__ import annotations

from collections import Counter

from dray.core.lifecycle.providers import health, records
from dray.core.lifecycle.providers.prices import spell_money
from dray.core.lifecycle.state.columns import kind_of
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import Provider
from dray.hub.documents.records import Document, moment

MOST_SPEEDS = 200
# Below it nothing that succeeded there counts any more.
LEAST_GOOD = 0.5


def provider_names(state: State) -> list[str]:
    """Every provider that the policy or a worker names, or that something is known of."""
    known = [key for kind, key in state.ledger if kind == records.KIND]
    return sorted({*state.policy.providers, *state.provided, *known})


def provider_document(state: State, name: str) -> Document:
    """One of them as it stands now."""
    record = records.read(state, name, state.now_ms)
    listed, good = state.policy.providers.get(name), record.succeeded
    prices = listed or Provider()
    within = {share: records.start_ms(record, share) for share in (0.5, 0.9)}
    return {
        "name": name,
        "listed": listed is not None,
        "health": record.health if record.health in health.HEALTHS else health.OK,
        "why": record.why,
        "since": moment(record.health_at_ms),
        "workers": len(state.provided.get(name, ())),
        "workers_here": state.providers_here.get(name, 0),
        "price_per_hour": prices.price_per_hour,
        "price_per_gpu_hour": dict(prices.price_per_gpu_hour),
        "egress_per_gb": prices.egress_per_gb,
        "spot": prices.spot,
        "worker_days": round(record.days, 4),
        "losses_per_day": round(records.loss_rate(record, prices.spot), 4),
        "success": round(records.success_share(record), 4),
        "succeeded": round(good, 2),
        "start_p50_s": _seconds(within[0.5]),
        "start_p90_s": _seconds(within[0.9]),
        "money": spell_money(record.money),
        "money_per_success": spell_money(record.money / good) if good >= LEAST_GOOD else None,
    }


def provider_detail(state: State, name: str, everything: bool) -> Document:
    """The same with its kinds of cards and, where all may be seen, how fast which jobs run on those."""
    columns = state.columns
    rows = (columns.row_of[worker] for worker in state.provided.get(name, ()) if worker in columns.row_of)
    kinds = Counter(kind_of(columns.offers[columns.get("offer", row)]) for row in rows)
    document = provider_document(state, name) | {"gpu_types": dict(sorted(kinds.items())), "speeds": []}
    if everything:
        document["speeds"] = list_speeds(state, set(kinds))
    return document


def list_speeds(state: State, kinds: set[str]) -> list[Document]:
    """How fast jobs run on these kinds of cards, by their names."""
    known = state.experience
    keys = sorted({key for key in (*known.runtimes, *known.speeds.rates) if key[1] in kinds and key[0]})
    return [
        {
            "job_name": name,
            "gpu_type": kind,
            "run_s": round(known.runtime_of(name, kind), 3) or None,
            "steps_per_s": round(known.speeds.rate_of(name, kind), 6) or None,
        }
        for name, kind in keys[:MOST_SPEEDS]
    ]


def _seconds(span_ms: float | None) -> float | None:
    return None if span_ms is None else round(span_ms / 1000, 3)
