"""Which rules hold for whom: one for a name goes before the one for each."""

from __future__ import annotations

from typing import Any

from dray.core.lifecycle.state.parties import Parties
from dray.core.model.policies.check import check_policy
from dray.core.model.records.records import Job
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec


def gates_of(raw: Any, user: str, queue: str = "default", plugin: str = "") -> list[str]:
    policy, parties = check_policy(raw), Parties()
    parties.begin(policy)
    spec = check_spec({"command": ["true"], "queue": queue, "plugin": plugin})
    job = Job(
        id="j",
        seq=1,
        user=user,
        name="",
        queue=queue,
        priority=0,
        tier="",
        spec=pack_spec(spec),
        numbered=False,
        total=1,
        plugin=plugin,
    )
    return [gate.key for gate in parties.all[parties.take(policy, job, {})].gates]


QUOTAS = {
    "quotas": [
        {"user": "*", "gpus": 8},
        {"user": "ana", "gpus": 16},
        {"queue": "*", "gpus": 4},
        {"plugin": "p", "gpus": 1},
    ]
}


def test_a_quota_for_a_name_goes_before_the_one_for_each() -> None:
    assert gates_of(QUOTAS, "ben") == ["quota user ben each", "quota queue default each"]
    assert gates_of(QUOTAS, "ana") == ["quota user ana own", "quota queue default each"]
    assert gates_of(QUOTAS, "ana", plugin="p")[-1] == "quota plugin p own"


def test_so_does_a_pace() -> None:
    raw = {
        "pacing": {"starts": [{"queue": "*", "per_minute": 6}, {"queue": "fast", "per_minute": 600}]},
        "queues": {"fast": None},
    }
    assert gates_of(raw, "ana") == ["pace queue default 0"]
    assert gates_of(raw, "ana", "fast") == ["pace queue fast 1"]
