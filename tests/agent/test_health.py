"""What checks of a service come to: said when it changes, patient at the start, counted in a row, spread, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from dray.agent.decide.attempts import Running
from dray.agent.decide.effects import Effect, Tell
from dray.agent.decide.health import MOST_AT_ONCE, Health, Question
from dray.core.model.specs.check import check_spec
from dray.errors import InvalidSpec


def make_attempt(number: int = 1, **health: Any) -> Running:
    spec = check_spec(
        {"command": ["x"], "type": "service", "ports": ["http", "admin"], "health_check": health}
    )
    attempt = Running(uid=f"1-{number}", task_id=f"web-{number}", pool="service", phase="running")
    attempt.health, attempt.named, attempt.ports = spec.health_check, spec.ports, [20_001, 20_002]
    return attempt


def make(**health: Any) -> Health:
    found = Health()
    found.begin(make_attempt(**health))
    return found


def ask(health: Health, fault: str, now_ms: int, number: int = 0) -> list[tuple[bool, bool, str]]:
    questions = {question.number: question for question in health.due(now_ms)}
    return told(health.answered(questions[number], fault, now_ms))


def told(effects: list[Effect]) -> list[tuple[bool, bool, str]]:
    words = [effect.payload for effect in effects if isinstance(effect, Tell)]
    return [(word["healthy"], word["live"], word["message"]) for word in words]


def test_a_plain_check_says_ready_then_unready_then_dead_each_once() -> None:
    health = make(http="/ready", interval_s=5)
    assert ask(health, "refused", 1_000) == []
    assert ask(health, "", 2_000) == [(True, True, "")]
    assert ask(health, "", 20_000) == []
    assert ask(health, "answered with 500", 30_000) == [(False, True, "answered with 500")]
    assert ask(health, "", 40_000) == [(True, True, "")]
    assert ask(health, "a", 50_000) == [(False, True, "a")]
    assert ask(health, "b", 60_000) == []
    assert ask(health, "c", 70_000) == [(False, False, "c")]
    assert told(health.repeat()) == [(False, False, "c")]


def test_what_starts_slowly_is_not_ill_before_its_start_period_is_over() -> None:
    health = make(tcp=True, start_period_s=100, interval_s=5)
    assert ask(health, "nobody listens", 0) == []
    for now_ms in range(10_000, 100_000, 10_000):
        assert ask(health, "nobody listens", now_ms) == []
    assert ask(health, "nobody listens", 100_000) == [(False, False, "nobody listens")]


def test_liveness_and_readiness_are_apart_with_ports_of_their_own() -> None:
    health = make(
        liveness={"tcp": True, "port": "admin", "threshold": 2}, readiness={"http": "/r", "threshold": 2}
    )
    ready, live = sorted(health.due(0), key=lambda question: question.number)
    assert (ready.port, ready.check.http, live.port, live.check.tcp) == (20_001, "/r", 20_002, True)
    assert told(health.answered(live, "", 1)) == []
    assert told(health.answered(ready, "", 1)) == [(True, True, "")]
    assert ask(health, "x", 100_000) == []
    health.end("1-1")
    assert health.due(10**9) == []


def test_the_forms_of_before_still_mean_something() -> None:
    health = make(liveness="/live", readiness="pg_isready -q", interval_secs=7)
    ready, live = sorted(health.due(0), key=lambda question: question.number)
    assert ready.check.command == ["/bin/sh", "-c", "pg_isready -q"]
    assert (live.check.http, live.check.interval_s) == ("/live", 7)


def test_many_are_asked_one_after_the_other_and_apart() -> None:
    health = Health()
    for number in range(300):
        health.begin(make_attempt(number, http="/"))
    seen: list[Question] = []
    while asked := health.due(1_000):
        assert len(asked) <= MOST_AT_ONCE
        assert health.wait_ms(1_000) is None or len(asked) < MOST_AT_ONCE
        for question in asked:
            health.answered(question, "", 1_000)
        seen += asked
    assert len({question.uid for question in seen}) == 300
    # From now on they are spread over a whole interval.
    later = [len(health.due(now_ms)) for now_ms in range(1_000, 9_000, 500)]
    assert 0 < later[6] < MOST_AT_ONCE


@pytest.mark.parametrize(
    ("health", "what"),
    [
        ({"http": "/a", "tcp": True}, "must say one of http, tcp, command, got http and tcp"),
        ({"http": "a"}, "http must be a path"),
        ({"http": "/a\r\nX: y"}, "http must be a path"),
        ({"http": "/a", "port": "grpc"}, "port 'grpc' is not among the ports of the job: http"),
        ({"http": "/a", "liveness": "/b"}, "gives http beside liveness"),
        ({"liveness": {"interval_s": 5}}, "liveness: must say one of"),
        ({"liveness": "/a b"}, "liveness: must be a path"),
    ],
)
def test_what_makes_no_sense_is_said(health: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidSpec) as fault:
        check_spec({"command": ["x"], "ports": ["http"], "health_check": health})
    assert [problem.where for problem in fault.value.problems] == ["health_check"]
    assert fault.value.problems[0].what.startswith(what)
