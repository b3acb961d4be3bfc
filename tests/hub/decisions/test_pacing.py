"""Token buckets on submits: what flows in, what is drawn, whose bucket it is, and all or none."""

from __future__ import annotations

import pytest

from dray.core.lifecycle.state.events import Clock
from dray.core.model.policies.policy import Pace, Pacing, Policy
from dray.core.model.specs.spec import JobSpec
from dray.errors import TooManyRequests
from dray.hub.decisions import pacing as submit_pacing
from dray.hub.decisions.pacing import BucketKey, SubmitPacing


def policy(*paces: Pace) -> Policy:
    return Policy(pacing=Pacing(submits=paces))


def job(user: str = "ana", queue: str = "default", **labels: str) -> JobSpec:
    return JobSpec(command=["true"], user_id=user, queue=queue, labels=labels)


def at(seconds: float) -> Clock:
    return Clock(round(seconds * 1000), 0)


EACH = policy(Pace(user="*", per_minute=60, burst=3))


def test_a_burst_goes_through_and_the_next_waits() -> None:
    pacing = SubmitPacing()
    pacing.take(EACH, [job()] * 3, at(100))
    with pytest.raises(TooManyRequests) as refused:
        pacing.take(EACH, [job()], at(100))
    assert refused.value.retry_after_s == pytest.approx(1)
    assert "'ana' may submit 60 jobs a minute" in refused.value.message
    pacing.take(EACH, [job("ben")], at(100))
    pacing.take(EACH, [job()], at(101))


def test_whoever_waits_as_told_is_let_in() -> None:
    pacing, now_s = SubmitPacing(), 0.0
    slow = policy(Pace(user="*", per_minute=7, burst=2))
    for _ in range(40):
        try:
            pacing.take(slow, [job()], at(now_s))
        except TooManyRequests as refused:
            now_s += refused.retry_after_s + 0.001
            pacing.take(slow, [job()], at(now_s))
    assert 38 / 7 * 60 <= now_s <= 38 / 7 * 60 + 1


def test_all_or_none() -> None:
    pacing = SubmitPacing()
    both = policy(Pace(user="*", per_minute=60, burst=10), Pace(queue="slow", per_minute=1, burst=1))
    pacing.take(both, [job(queue="slow")], at(0))
    with pytest.raises(TooManyRequests, match="queue 'slow'"):
        pacing.take(both, [job()] * 5 + [job(queue="slow")], at(0))
    (filled,) = [bucket for bucket in pacing.list_filled(both, 0) if bucket.key == BucketKey("user", "ana")]
    assert filled.tokens == 9


def test_a_batch_larger_than_the_burst_leaves_a_debt() -> None:
    pacing = SubmitPacing()
    pacing.take(EACH, [job()] * 30, at(0))
    with pytest.raises(TooManyRequests) as refused:
        pacing.take(EACH, [job()], at(0))
    assert refused.value.retry_after_s == pytest.approx(28)
    with pytest.raises(TooManyRequests):
        pacing.take(EACH, [job()] * 30, at(29))
    pacing.take(EACH, [job()] * 30, at(30))


def test_a_name_goes_before_each() -> None:
    pacing = SubmitPacing()
    named = policy(Pace(user="*", per_minute=60, burst=1), Pace(user="ana", per_minute=60, burst=5))
    pacing.take(named, [job()] * 5, at(0))
    pacing.take(named, [job("ben")], at(0))
    with pytest.raises(TooManyRequests):
        pacing.take(named, [job("ben")], at(0))


def test_labels_with_and_without_a_value() -> None:
    pacing = SubmitPacing()
    labels = policy(
        Pace(label="license=matlab", per_minute=1, burst=1), Pace(label="sweep", per_minute=1, burst=2)
    )
    pacing.take(labels, [job(license="matlab"), job(license="other"), job(license="other")], at(0))
    with pytest.raises(TooManyRequests):
        pacing.take(labels, [job(license="matlab")], at(0))
    pacing.take(labels, [job(sweep="1"), job(sweep="2")], at(0))
    with pytest.raises(TooManyRequests):
        pacing.take(labels, [job(sweep="3")], at(0))


def test_a_new_policy_keeps_what_was_drawn() -> None:
    pacing = SubmitPacing()
    pacing.take(EACH, [job()] * 3, at(0))
    larger = policy(Pace(user="*", per_minute=60, burst=100))
    with pytest.raises(TooManyRequests):
        pacing.take(larger, [job()], at(0))
    pacing.take(Policy(), [job()] * 1000, at(0))


def test_full_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_pacing, "MAX_BUCKETS", 10)
    pacing = SubmitPacing()
    for number in range(100):
        pacing.take(EACH, [job(f"u{number}")], at(number * 10))
    assert len(pacing.list_filled(EACH, 1_000_000)) <= 11
