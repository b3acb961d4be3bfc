"""Output and errors over one stream: however its bytes are cut, what was packed comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import InvalidInput
from dray.wire.streams.parcels import (
    ERRORS,
    HEAD,
    MOST_BYTES,
    OUTPUT,
    Ended,
    Parcels,
    pack,
    read_ended,
    write_ended,
)

PIECES = st.lists(st.tuples(st.sampled_from([OUTPUT, ERRORS]), st.binary(min_size=1, max_size=50)))


@given(PIECES, st.lists(st.integers(1, 40), min_size=1))
def test_what_was_packed_comes_out(pieces: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(pack(which, piece) for which, piece in pieces)
    parcels, found, at = Parcels(), {OUTPUT: b"", ERRORS: b""}, 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        for which, piece in parcels.open(data[at : at + size]):
            found[which] += piece
        at += size
    assert found == {
        which: b"".join(piece for each, piece in pieces if each == which) for which in (OUTPUT, ERRORS)
    }


@pytest.mark.parametrize("head", [(0, 1), (3, 1), (OUTPUT, 0), (OUTPUT, MOST_BYTES + 1)])
def test_what_is_no_parcel_is_refused(head: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="no output of a process"):
        list(Parcels().open(HEAD.pack(*head) + b"x"))


def test_an_end_is_read_as_it_was_written() -> None:
    assert read_ended(write_ended(Ended(137, "why"))) == Ended(137, "why")
    for payload in (b"", b"{}", b'{"code": "x"}', b"\xff"):
        with pytest.raises(InvalidInput):
            read_ended(payload)
