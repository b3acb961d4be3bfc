"""What quotas have to say about people without work at the moment."""

from __future__ import annotations

from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.model.records.ledger import Meter
from dray.hub.decisions.holdings import find_holdings, known_names, quotas_in_force, used_gpu_hours

DAY_MS = 86_400_000
POLICY = check_policy(
    {
        "quotas": [
            {"user": "*", "gpu_hours": {"hard": 10, "per_s": "1d"}},
            {"user": "ben", "gpus": 3},
            {"queue": "*", "gpus": 2},
        ],
        "queues": {"gold": None},
    }
)


def test_what_was_used_is_read_from_the_meter() -> None:
    state, now_ms = State(), 30 * DAY_MS + 5
    state.policy = POLICY
    state.ledger["meter", "quota user ana each"] = Meter(period=30, gpu_ms=2 * 3_600_000 * 1000)
    assert used_gpu_hours(state, "user", "ana", POLICY.quotas[0], now_ms) == 2
    assert used_gpu_hours(state, "user", "ana", POLICY.quotas[0], now_ms + DAY_MS) == 0
    assert used_gpu_hours(state, "user", "eve", POLICY.quotas[0], now_ms) == 0


def test_whom_quotas_are_about() -> None:
    state = State()
    state.policy = POLICY
    state.ledger["meter", "quota user ana each"] = Meter()
    state.ledger["meter", "usage eve"] = Meter()
    names = known_names(state, find_holdings(state))
    assert names["user"] == {"ana"}
    assert set(quotas_in_force(POLICY, names)) == {("user", "ana"), ("user", "ben"), ("queue", "gold")}
    both = quotas_in_force(POLICY, {"user": ["ana", "ben"], "queue": [], "plugin": [], "template": []})
    assert both["user", "ana"] is POLICY.quotas[0]
    assert both["user", "ben"] is POLICY.quotas[1]
