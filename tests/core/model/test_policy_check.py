"""A policy file is read whole: every fault at once, each with its place, and near misses named."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import (
    Budget,
    Cap,
    Pace,
    Pacing,
    Policy,
    PreemptionPolicy,
    Queue,
    Quota,
    pack_policy,
    unpack_policy,
)
from dray.core.model.policies.spelling import compare_policies, list_values, policy_document
from dray.errors import InvalidPolicy


def faults(raw: Any) -> dict[str, str]:
    with pytest.raises(InvalidPolicy) as caught:
        check_policy(raw)
    return {problem.where: problem.what for problem in caught.value.problems}


WHOLE = {
    "queues": {
        "default": None,
        "prod": {"order": "priority", "weight": 3, "ageing_s": "30m"},
        "batch": {"order": "fair_share", "protect_after_s": "2h"},
    },
    "quotas": [
        {"user": "*", "gpus": 8},
        {"queue": "batch", "gpu_hours": {"soft": 100, "hard": 200, "per_s": "7d"}},
        {"plugin": "sweeps", "gpus": 0.5},
    ],
    "pacing": {
        "submits": [{"user": "*", "per_minute": 120, "burst": 20}],
        "starts": [{"label": "license=matlab", "per_minute": 6}],
        "running": [{"label": "license", "most": 4}],
    },
    "fair_share": {"half_life_s": "14d", "weights": {"ana": 2.5}},
    "placement": {"strategy": "fgd", "weights": {"cost": 3}, "spread_label": "rack"},
    "preemption": {"strategy": "pressure", "kinds": {"gpu": "fair_share"}, "limits": {"per_job": 1}},
    "providers": {"on-prem": {"price_per_hour": 0.4}},
}


def test_a_whole_file_is_read() -> None:
    policy = check_policy(WHOLE)
    assert policy.queues["default"] == Queue()
    assert policy.queues["prod"] == Queue(order="priority", weight=3, ageing_s=1800)
    assert policy.quotas[1] == Quota(queue="batch", gpu_hours=Budget(soft=100, hard=200, per_s=604800))
    assert policy.pacing.starts == (Pace(label="license=matlab", per_minute=6),)
    assert policy.pacing.running == (Cap(label="license", most=4),)
    assert policy.preemption.rule_for("gpu") == "fair_share"
    assert policy.preemption.rule_for("cpu") == "pressure"
    assert policy.providers["on-prem"].price_per_hour == 0.4


@pytest.mark.parametrize("raw", [None, {}, {"queues": None, "pacing": None}, WHOLE])
def test_a_policy_spelled_back_reads_the_same(raw: Any) -> None:
    policy = check_policy(raw)
    assert check_policy(policy_document(policy)) == policy
    assert unpack_policy(pack_policy(policy)) == policy


def test_nothing_written_is_the_default() -> None:
    assert check_policy({}) == Policy()
    assert not [value for value in list_values(Policy()) if value.given]


def test_every_fault_at_once() -> None:
    found = faults(
        {
            "queus": {},
            "queues": {"a b": None, "gold": {"weight": -1, "order": "fiffo", "sped": 1}},
            "quotas": [{"user": "a", "queue": "gold", "gpus": 1}, {"user": "b", "gpus": math.nan}, "x", {"user": "c"}],
            "pacing": {"submits": [{"per_minute": 0}, {"per_minute": 3}], "running": [{"label": "!x", "most": 1}, {}]},
            "placement": {"strategy": "best-fit", "weights": {"warmth": -2, "cots": 1}},
            "preemption": {"kinds": {"gpus": "none", "gpu": "prio"}, "by_tier": "yes", "pressure_share": 2},
            "fair_share": {"half_life_s": "7 days", "weights": {"ana": None}},
        }
    )  # fmt: skip
    assert list(found) == [
        "queus",
        "queues.a b",
        "queues.gold.weight",
        "queues.gold.order",
        "queues.gold.sped",
        "quotas[1].gpus",
        "quotas[2]",
        "pacing.submits[0].per_minute",
        "pacing.running[0].label",
        "pacing.running[1].label",
        "pacing.running[1].most",
        "placement.strategy",
        "placement.weights.warmth",
        "placement.weights.cots",
        "preemption.kinds.gpus",
        "preemption.kinds.gpu",
        "preemption.by_tier",
        "preemption.pressure_share",
        "fair_share.half_life_s",
        "fair_share.weights.ana",
        "quotas[0]",
        "quotas[3]",
        "pacing.submits[1]",
    ]
    assert "did you mean 'queues'?" in found["queus"]
    assert "got -1" in found["queues.gold.weight"]
    assert "did you mean 'fifo'?" in found["queues.gold.order"]
    assert "did you mean 'best_fit'?" in found["placement.strategy"]
    assert "did you mean 'cost'?" in found["placement.weights.cots"]
    assert "did you mean 'gpu'?" in found["preemption.kinds.gpus"]
    assert "finite" in found["quotas[1].gpus"]
    assert found["quotas[0]"].endswith("names user and queue")


@pytest.mark.parametrize(
    ("raw", "where", "what"),
    [
        ({"quotas": [{"gpus": 1}]}, "quotas[0]", "exactly one of user, queue, plugin, template"),
        ({"quotas": [{"user": "a"}]}, "quotas[0]", "limits nothing"),
        ({"quotas": [{"user": "a", "gpu_hours": {}}]}, "quotas[0].gpu_hours", "limits nothing"),
        (
            {"quotas": [{"user": "a", "gpu_hours": {"soft": 5, "hard": 4}}]},
            "quotas[0].gpu_hours.soft",
            "must not be above hard (4), got 5",
        ),
        ({"quotas": [{"user": "a", "gpus": 1}, {"user": "a", "gpus": 2}]}, "quotas[1]", "as quotas[0] is"),
        ({"quotas": {"user": "a"}}, "quotas", "must be a list"),
        ({"pacing": {"starts": [{"per_minute": 1}]}}, "pacing.starts[0]", "none of them"),
        (
            {"pacing": {"starts": [{"user": "a", "per_minute": 0}]}},
            "pacing.starts[0].per_minute",
            "more than 0",
        ),
        (
            {"pacing": {"starts": [{"user": "a", "burst": 1.5}]}},
            "pacing.starts[0].burst",
            "must be a whole number",
        ),
        ({"pacing": {"starts": [{"user": "a", "burst": 0}]}}, "pacing.starts[0].burst", "1 or more"),
        ({"queues": {"-x": {}}}, "queues.-x", "starting with a letter or digit"),
        ({"queues": {3: {}}}, "queues.3", "must be text, got 3: put it in quotes"),
        ({"queues": ["a"]}, "queues", "must be names"),
        ({"queues": {"a": 3}}, "queues.a", "must be keys and values, got 3"),
        ({"queues": {"a": {"weight": True}}}, "queues.a.weight", "must be a number, got True"),
        ({"queues": {"a": {"weight": 0}}}, "queues.a.weight", "more than 0"),
        ({"queues": {"a": {"ageing_s": -1}}}, "queues.a.ageing_s", "0 or more"),
        ({"queues": {"a": {"ageing_s": [1]}}}, "queues.a.ageing_s", "must be seconds"),
        ({"queues": {"a": {"ageing_s": math.inf}}}, "queues.a.ageing_s", "finite"),
        ({"quotas": [{"queue": "b", "gpus": 1}], "queues": {"a": None}}, "quotas[0].queue", "(a, default)"),
        ({"fair_share": {"half_life_s": 0}}, "fair_share.half_life_s", "more than 0"),
        ({"placement": {"spread_label": "a b"}}, "placement.spread_label", "name of a worker label"),
        ({"preemption": {"fair_margin": 0.5}}, "preemption.fair_margin", "1 or more"),
        ({"preemption": {"moves": -1}}, "preemption.moves", "0 or more"),
        ({"preemption": {"moves": True}}, "preemption.moves", "whole number"),
        ({"preemption": {"limits": {"per_job": -1}}}, "preemption.limits.per_job", "0 or more"),
        ({"providers": {"x": {"price_per_hour": -1}}}, "providers.x.price_per_hour", "0 or more"),
        ({"providers": {"": {}}}, "providers.", "label provider"),
        ([], "policy", "must be keys and values"),
        ("fifo", "policy", "must be keys and values"),
    ],
)
def test_each_fault_has_its_place(raw: Any, where: str, what: str) -> None:
    found = faults(raw)
    assert list(found) == [where]
    assert what in found[where]


def test_a_faulty_queue_is_still_a_queue() -> None:
    """What refers to it is no second fault."""
    found = faults({"queues": {"gold": {"weight": -1}}, "quotas": [{"queue": "gold", "gpus": 1}]})
    assert list(found) == ["queues.gold.weight"]


def test_any_queue_may_be_named_where_none_is_listed() -> None:
    policy = check_policy({"quotas": [{"queue": "anything", "gpus": 1}]})
    assert policy.admits("anything")
    assert not check_policy({"queues": {"a": None}}).admits("anything")


def test_a_flood_of_faults_is_cut() -> None:
    found = faults({"queues": {f"q{n}": {f"k{n}": 1} for n in range(1000)}})
    assert len(found) == 200


def test_what_differs_between_two() -> None:
    old = check_policy({"queues": {"a": {"weight": 1}}})
    new = check_policy({"queues": {"a": {"weight": 2}}, "quotas": [{"user": "x", "gpus": 4}]})
    changed = compare_policies(old, new)
    assert ("queues.a.weight", 1, 2) in changed
    assert ("quotas[0].gpus", None, 4) in changed
    assert compare_policies(new, new) == []


def test_values_tell_what_was_chosen() -> None:
    given_names = [value.name for value in list_values(check_policy(WHOLE)) if value.given]
    assert "queues.prod.weight" in given_names
    assert "queues.prod.protect_after_s" not in given_names
    assert "quotas[1].gpu_hours.per_s" not in given_names


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["*", "fifo", "a", "30m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=6)
            | st.sampled_from([*Policy.__struct_fields__, *Queue.__struct_fields__, *Quota.__struct_fields__])
            | st.sampled_from(
                [*Pacing.__struct_fields__, *PreemptionPolicy.__struct_fields__, "label", "most"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def read(raw: Any) -> Policy | None:
    try:
        return check_policy(raw)
    except InvalidPolicy as fault:
        if not fault.problems:
            raise
        return None


@given(_JSON)
def test_whatever_comes_is_a_policy_or_problems(raw: Any) -> None:
    policy = read(raw)
    if policy is not None:
        assert msgspec.msgpack.decode(pack_policy(policy), type=Policy) == policy
        assert check_policy(policy_document(policy)) == policy


def test_numbers_beyond_all_bounds() -> None:
    found = faults({"queues": {"a": {"weight": -(10**400), "ageing_s": 10**400}}})
    assert set(found) == {"queues.a.weight", "queues.a.ageing_s"}
