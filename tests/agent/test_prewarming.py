"""What an agent gets ready, in which order, and for whom it makes way. Pure: values in, values out."""

from __future__ import annotations

from dray.agent.decide.prewarming import MOST, TOLD_EVERY, Cool, Prewarming, Warm
from dray.wire.messages.hub import PrewarmHint


def tree(name: str) -> Warm:
    return Warm(f"snap-{name}", f"sha-{name}", "", "ann")


def built(name: str) -> Warm:
    return Warm("", "", f"env-{name}", "ann")


def hint(name: str, environment: str = "", over: bool = False) -> PrewarmHint:
    return PrewarmHint("job", f"snap-{name}", f"sha-{name}", environment, "ann", over)


def test_one_thing_after_another() -> None:
    own = Prewarming()
    assert own.hinted(hint("a", "env-a")) == [tree("a")]
    assert own.hinted(hint("b")) == []
    assert own.hinted(hint("a", "env-a")) == [], "the same once more"
    assert own.warmed(tree("a")) == [tree("b")], "asked for again, the other comes later"
    assert own.warmed(tree("b")) == [built("a")]
    assert own.warmed(tree("old")) == [], "nobody asked for that"
    assert own.warmed(built("a")) == []


def test_what_is_taken_back_is_stopped_or_never_begun() -> None:
    own = Prewarming()
    own.hinted(hint("a"))
    own.hinted(hint("b"))
    own.hinted(hint("c"))
    assert own.hinted(hint("b", over=True)) == []
    assert own.hinted(hint("a", over=True)) == [Cool(), tree("c")]


def test_a_task_goes_before() -> None:
    own = Prewarming()
    own.hinted(hint("a"))
    assert own.began("u1", "") == [Cool()]
    assert own.began("u2", "env-x") == []
    assert own.hinted(hint("b")) == [], "not while tasks wait"
    assert own.ended("u1") == []
    assert own.ended("u2") == [tree("a")], "what was stopped goes on first"
    assert own.ended("unknown") == []


def test_the_build_that_a_task_waits_for_goes_on() -> None:
    own = Prewarming()
    own.hinted(PrewarmHint("job", environment="env-x", user="ann"))
    assert own.began("u1", "env-x") == []
    assert own.began("u2", "env-y") == [Cool()]


def test_few_are_kept_and_the_oldest_go() -> None:
    own = Prewarming()
    for name in "abcdefgh":
        own.hinted(hint(name))
    done = ["a"]
    while step := own.warmed(tree(done[-1])):
        done.append(step[0].snapshot_id.removeprefix("snap-") if isinstance(step[0], Warm) else "")
    assert done == ["a", *"efgh"]
    assert len(done) == 1 + MOST


def test_what_is_here_is_said_when_it_changes_and_now_and_then() -> None:
    own = Prewarming()
    assert own.tell() == {}
    own.have = ("snapshot a",)
    assert own.tell() == {"warm": ["snapshot a"]}
    assert [own.tell() for _ in range(TOLD_EVERY)] == [{}] * (TOLD_EVERY - 1) + [{"warm": ["snapshot a"]}]
    own.registering()
    assert own.tell() == {"warm": ["snapshot a"]}
    own.have = ()
    assert own.tell() == {"warm": []}, "that all is gone is news"
