"""Readers of frames, specs and texts refuse what they cannot read, with the errors they name and soon."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tools.fuzz_codec import Tally, run_block, targets

from dray.core.model.specs.check import MAX_CONDITIONS, MAX_PROBLEMS, check_spec
from dray.core.model.units import parse_array, parse_bytes, parse_gpus, parse_minutes, parse_seconds
from dray.errors import InvalidInput, InvalidSpec
from dray.hub.access.caller import Caller
from dray.hub.decisions.commands import read_specs
from dray.hub.http.bodies import read_struct
from dray.wire.schemas.jobs import CancelRequest

DIGITS = "9" * 5000
BLOCKS = sum(target.weight for target in targets())


@pytest.mark.parametrize("number", range(0, BLOCKS, 3))
def test_a_block_of_spoilt_inputs(number):
    tally = run_block(5, number, Tally(Counter(), Counter(), {}, 0.0, 0))
    assert tally.findings == {}
    assert tally.inputs.total() > 0


def test_the_fuzzer_sees_a_reader_that_breaks(monkeypatch):
    monkeypatch.setattr("tools.fuzz_codec.check_message", lambda kind, body: 1 // 0)
    tally = run_block(5, 0, Tally(Counter(), Counter(), {}, 0.0, 0))
    assert any("ZeroDivisionError" in place for place in tally.findings)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *itertools.product((parse_minutes, parse_array, parse_gpus), [DIGITS, f"1:{DIGITS}", f"{DIGITS}-1"]),
        *itertools.product((parse_minutes, parse_seconds), ["9" * 400 + "s", DIGITS + "d"]),
        (parse_array, f"0-9%{DIGITS}"),
        (parse_bytes, 10**5000),
        (parse_seconds, 10**5000),
    ],
    ids=lambda value: getattr(value, "__name__", "digits"),
)
def test_numbers_of_thousands_of_digits_are_refused(parse, text):
    with pytest.raises(InvalidInput) as refusal:
        parse(text)
    assert len(refusal.value.message) < 300


@pytest.mark.parametrize("field", ["type", "job_tier", "overlap", "gpu_backend"])
def test_a_huge_number_where_a_word_should_be(field):
    with pytest.raises(InvalidSpec, match=field):
        check_spec({"command": ["x"], field: 10**5000})


def test_problems_of_a_flood_of_unknown_fields_are_bounded():
    with pytest.raises(InvalidSpec) as refusal:
        check_spec({"command": ["x"], **{f"gpu_coutt{number}": 1 for number in range(5000)}})
    assert len(refusal.value.problems) == MAX_PROBLEMS
    assert "gpu_count" in refusal.value.problems[0].what


def test_an_endless_field_name_is_cut():
    with pytest.raises(InvalidSpec) as refusal:
        check_spec({"command": ["x"], "a" * 100_000: 1})
    assert len(refusal.value.message) < 300


def test_conditions_have_a_number():
    check_spec({"command": ["x"], "require": ["a=b"] * MAX_CONDITIONS})
    with pytest.raises(InvalidSpec, match="conditions"):
        check_spec({"command": ["x"], "require": ["a=b"] * (MAX_CONDITIONS + 1)})


def test_problems_of_a_batch_are_bounded():
    with pytest.raises(InvalidSpec) as refusal:
        read_specs(Caller("t", "u", ("submit",)), [{"comand": 1}] * 5000, 10_000)
    assert len(refusal.value.problems) <= 2 * MAX_PROBLEMS


def test_a_whole_number_may_be_spelled_with_a_fraction():
    assert read_struct(CancelRequest, {"task": 3.0}).task == 3
    with pytest.raises(InvalidInput, match="task"):
        read_struct(CancelRequest, {"task": 3.5})


def test_a_small_body_lists_no_endless_problems():
    with pytest.raises(InvalidInput) as refusal:
        read_struct(CancelRequest, {f"f{number}": 1 for number in range(5000)})
    assert len(refusal.value.problems) == MAX_PROBLEMS
