"""What tasks may say, how much of it is kept, and how often the hub hears of it."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.agent.decide.words import Said, read_object, read_words
from dray.core.model.bounds import MAX_STEP
from dray.wire.messages.worker import MAX_NOTE, JobProgress, check_message

FIELDS = st.sampled_from(["progress", "saved", "watch", "finished", "step", "fraction", "note", "more"])


def test_progress_is_bounded():
    words = read_words({"progress": {"step": 3, "fraction": 7, "note": "x" * 1000, "colour": "red"}})
    assert words == {"progress": {"step": 3, "fraction": 1.0, "note": "x" * MAX_NOTE}}
    assert read_words({"progress": {"fraction": -1}}) == {"progress": {"fraction": 0.0}}
    assert read_words({"progress": {"note": "a\ud800b"}}) == {"progress": {"note": "a?b"}}


def test_several_things_may_be_said_in_one_line():
    words = read_words({"progress": {"step": 3}, "saved": {"step": 3}, "watch": {}, "later": {}})
    assert list(words) == ["progress", "saved", "watch"]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({}, "nothing known"),
        ({"hurry": {}}, "nothing known"),
        ({"progress": 3}, "progress"),
        ({"progress": {"step": "3"}}, r"progress\.step"),
        ({"progress": {"step": True}}, r"progress\.step"),
        ({"progress": {"step": -1}}, r"progress\.step"),
        ({"progress": {"fraction": "half"}}, r"progress\.fraction"),
        ({"progress": {"fraction": float("nan")}}, r"progress\.fraction"),
        ({"progress": {"note": ["a"]}}, r"progress\.note"),
        ({"saved": {}}, r"saved\.step"),
        ({"saved": {"step": 2.5}}, r"saved\.step"),
        ({"saved": {"step": MAX_STEP + 1}}, r"saved\.step"),
        ({"watch": None}, "watch"),
    ],
)
def test_nonsense_is_named(message, place):
    with pytest.raises(ValueError, match=place):
        read_words(message)


@pytest.mark.parametrize("line", [b"", b"hello", b"[1]", b'"x"', b"\xff", b"[" * 3000])
def test_a_line_is_an_object(line):
    with pytest.raises(ValueError, match="JSON object"):
        read_object(line)
    assert read_object(json.dumps({"a": 1}).encode()) == {"a": 1}


def test_progress_goes_out_once_a_second():
    said = Said()
    assert not said.is_due(0)
    said.hear({"progress": {"step": 1}}, 0)
    assert said.is_due(0), "the first word goes out at once"
    said.told(0)
    said.hear({"progress": {"step": 2}}, 10)
    assert not said.is_due(999)
    assert said.is_due(1000)
    assert said.payload("job", "1-1", 1000) == {"task_id": "job", "attempt": "1-1", "step": 2}


def test_a_save_goes_out_at_once_but_a_flood_of_them_does_not():
    said = Said()
    said.hear({"progress": {"step": 1}}, 0)
    said.told(0)
    said.hear({"saved": {"step": 1}}, 10)
    assert said.is_due(10)
    said.told(10)
    said.hear({"saved": {"step": 2}}, 20)
    assert not said.is_due(20)
    assert said.is_due(1010)
    payload = said.payload("job", "1-1", 1020)
    assert (payload["saved_step"], payload["saved_age_s"]) == (2, 1.0)


def test_saves_only_grow_and_a_new_hub_session_hears_all_again():
    said = Said()
    said.hear({"saved": {"step": 5}}, 0)
    said.told(0)
    said.hear({"saved": {"step": 4}}, 5000)
    assert not said.untold
    said.repeat()
    assert said.is_due(5000)
    assert said.payload("job", "1-1", 5000)["saved_step"] == 5


def test_nothing_said_is_nothing_to_repeat():
    said = Said()
    said.hear({"watch": {}, "finished": {}}, 0)
    said.repeat()
    assert not said.untold
    assert said.finished


SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(FIELDS, SCRAPS))
def test_whatever_is_said_comes_out_bounded_or_is_refused(message):
    said = Said()
    try:
        words = read_words(message)
    except ValueError:
        return
    said.hear(words, 0)
    body = msgspec.convert(said.payload("job", "1-1", 5), JobProgress)
    check_message("job_progress", body)
    assert len(body.note or "") <= MAX_NOTE
