"""Envelopes in both encodings: closed union, empty parts left out, faults that name the place, nothing else raised."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import InvalidInput
from dray.wire.messages.codec import MAX_DEPTH, Codec, depth_of, message


class Note(msgspec.Struct):
    """A payload to test with."""

    text: str
    numbers: list[int] = []
    blob: bytes = b""


PAYLOADS: dict[str, type[Any]] = {"note": Note}
CODECS = [Codec(PAYLOADS, False), Codec(PAYLOADS, True)]
both = pytest.mark.parametrize("codec", CODECS, ids=["json", "msgpack"])


def pack(codec: Codec, value: Any) -> bytes:
    return msgspec.msgpack.encode(value) if codec.binary else msgspec.json.encode(value)


@both
def test_a_message_survives_the_way(codec: Codec) -> None:
    frame = codec.encode([message("note", {"text": "ä", "numbers": [1, -2], "blob": b"\x00\xff"})])
    [envelope] = codec.split(frame)
    assert (envelope.type, envelope.error) == ("note", "")
    assert codec.open(envelope) == Note("ä", [1, -2], b"\x00\xff")


@both
def test_several_messages_are_a_list_and_one_is_none(codec: Codec) -> None:
    one, two = message("note", {"text": "1"}), message("note", {"text": "2"})
    assert [codec.open(envelope).text for envelope in codec.split(codec.encode([one, two]))] == ["1", "2"]
    assert len(codec.split(codec.encode([one]))) == 1
    with pytest.raises(InvalidInput, match="empty list"):
        codec.split(pack(codec, []))
    with pytest.raises(InvalidInput, match="one envelope per frame"):
        codec.split(codec.encode([one, two]), lists=False)


def test_empty_parts_are_left_out() -> None:
    assert message("x") == {"type": "x"}
    assert message("x", {}) == {"type": "x"}
    assert message("x", error="e") == {"type": "x", "error": "e"}
    assert CODECS[0].encode([message("x")]) == b'{"type":"x"}'
    assert CODECS[1].encode([message("x")]) == b"\x81\xa4type\xa1x"


@both
@pytest.mark.parametrize("payload", [None, "left out"])
def test_a_payload_that_is_null_or_absent_is_empty(codec: Codec, payload: Any) -> None:
    given_parts = {"type": "note"} | ({} if payload else {"payload": None})
    with pytest.raises(InvalidInput, match=r"note: .*required field `text`"):
        codec.open(codec.split(pack(codec, given_parts))[0])


@both
def test_unknown_fields_are_ignored_at_every_level(codec: Codec) -> None:
    frame = pack(codec, {"type": "note", "payload": {"text": "x", "new": {"deep": [1]}}, "trace": 4})
    [envelope] = codec.split(frame)
    assert codec.open(envelope) == Note("x")


@both
def test_the_union_is_closed_and_says_what_is_in_it(codec: Codec) -> None:
    [envelope] = codec.split(codec.encode([message("letter", {"text": "x"})]))
    with pytest.raises(InvalidInput, match=r"unknown message type 'letter': this peer may send note"):
        codec.open(envelope)


@both
def test_a_long_unknown_type_is_not_echoed_whole(codec: Codec) -> None:
    [envelope] = codec.split(codec.encode([message("x" * 1_000)]))
    with pytest.raises(InvalidInput) as fault:
        codec.open(envelope)
    assert len(fault.value.message) < 200


@both
@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"text": 3}, "$.text"),
        ({"text": "x", "numbers": [1, "2"]}, "$.numbers[1]"),
        ({"text": "x", "numbers": {"a": 1}}, "$.numbers"),
        ([], "object"),
        (7, "object"),
    ],
)
def test_faults_name_the_message_and_the_place(codec: Codec, payload: Any, place: str) -> None:
    [envelope] = codec.split(pack(codec, {"type": "note", "payload": payload}))
    with pytest.raises(InvalidInput) as fault:
        codec.open(envelope)
    assert fault.value.message.startswith("note: ")
    assert place in fault.value.message


@both
@pytest.mark.parametrize("value", [None, 3, "text", [1], [[]], {"payload": {}}, {"type": 3}, {"type": None}])
def test_what_is_no_envelope_is_said_to_be_none(codec: Codec, value: Any) -> None:
    with pytest.raises(InvalidInput, match="the frame is not an envelope"):
        codec.split(pack(codec, value))


@pytest.mark.parametrize(
    ("codec", "frame"),
    [
        (CODECS[0], b'{"type":"note","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        (CODECS[1], b"\x82\xa4type\xa4note\xa7payload" + b"\x91" * 100_000 + b"\xc0"),
    ],
    ids=["json", "msgpack"],
)
def test_bottomless_nesting_is_a_fault_and_no_crash(codec: Codec, frame: bytes) -> None:
    with pytest.raises(InvalidInput, match="nested deeper"):
        codec.split(frame)


@both
def test_deep_nesting_in_a_known_field_is_a_fault(codec: Codec) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    [envelope] = codec.split(pack(codec, {"type": "note", "payload": {"text": "x", "numbers": deep}}))
    with pytest.raises(InvalidInput, match="numbers"):
        codec.open(envelope)


@both
@given(frame=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(codec: Codec, frame: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        for envelope in codec.split(frame):
            assert isinstance(codec.open(envelope), Note)


@given(text=st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        [envelope] = CODECS[0].split('{"type": "note", "payload": {"text": "' + text + '"}}')
        assert isinstance(CODECS[0].open(envelope), Note)


def test_depth_is_counted_to_just_past_the_limit() -> None:
    assert depth_of(1) == 1
    assert depth_of([]) == 1
    assert depth_of({"a": [{"b": 1}]}) == 4
    deep: Any = []
    for _ in range(10 * MAX_DEPTH):
        deep = [deep]
    assert depth_of(deep) == MAX_DEPTH + 1
    assert depth_of(deep, 3) == 4
