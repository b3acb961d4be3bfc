"""Packed values: what goes in comes out, buffers beside the pickle, references, and words for what cannot travel."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.functions.failures import CallFailed, RemoteError, RemoteTraceback, pack_failure, unpack_failure
from dray.functions.values import (
    ALIGNMENT,
    INLINE_BYTES,
    DamagedValue,
    Pledge,
    Unpicklable,
    pack,
    pack_call,
    unpack,
    unpack_call,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(PLAIN)
def test_what_goes_in_comes_out(value: Any) -> None:
    packed = pack(value)
    data = packed.join()
    assert len(data) == packed.size
    assert unpack(data) == value


@given(st.lists(st.integers(0, 300), max_size=6), st.data())
def test_a_value_with_buffers_that_was_cut_anywhere_is_refused(sizes: list[int], data: st.DataObject) -> None:
    whole = pack([np.arange(size, dtype=np.uint8) for size in sizes]).join()
    with pytest.raises(DamagedValue):
        unpack(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DamagedValue):
        unpack(whole + b"x")


def test_arrays_stay_out_of_the_pickle_and_are_not_copied() -> None:
    array = np.arange(1 << 18, dtype=np.float64)
    packed = pack({"a": array, "b": array[:7]})
    assert any(
        isinstance(part, memoryview) and np.shares_memory(np.frombuffer(part, np.uint8), array)
        for part in packed.parts
    )
    data = bytearray(packed.join())
    back = unpack(data)
    assert np.array_equal(back["a"], array)
    assert np.array_equal(back["b"], array[:7])
    assert back["a"].flags.writeable
    at = (
        back["a"].__array_interface__["data"][0]
        - np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    )
    assert at % ALIGNMENT == 0
    assert np.shares_memory(back["a"], np.frombuffer(data, np.uint8))


def test_small_arrays_can_be_written_to_even_from_fixed_bytes() -> None:
    back = unpack(pack(np.zeros(4)).join())
    back += 1
    assert back.sum() == 4


def test_what_pickle_cannot_name_goes_by_value() -> None:
    offset = 3
    assert unpack(pack(lambda x: x + offset).join())(1) == 4


class Coming(Pledge):
    def pledge(self) -> str:
        return "j1/4"


def test_a_pledge_packs_as_a_reference_and_unpacks_as_the_value() -> None:
    packed = pack_call("f", (1, [Coming()]), {"k": Coming()})
    assert packed.refs == ("j1/4", "j1/4")
    asked = []

    def load(task_id: str) -> str:
        asked.append(task_id)
        return "value"

    assert unpack_call(packed.join(), load) == ((1, ["value"]), {"k": "value"})
    assert set(asked) == {"j1/4"}
    with pytest.raises(DamagedValue, match="j1/4"):
        unpack(packed.join())
    with pytest.raises(TypeError, match="same hub"):
        pickle.dumps(Coming())


def test_an_argument_that_cannot_travel_is_named() -> None:
    with pytest.raises(Unpicklable, match=r"argument 2 of train\(\) is a lock"):
        pack_call("train", (1, threading.Lock()), {})
    with pytest.raises(Unpicklable, match=r"argument 'guard' of train\(\) is a lock"):
        pack_call("train", (1,), {"guard": threading.Lock()})


class Forgetful(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Holder(Exception):
    def __init__(self, held: Any) -> None:
        super().__init__("holds something")
        self.held = held


def raised(fault: BaseException) -> BaseException:
    try:
        raise fault
    except BaseException as caught:  # noqa: BLE001 - the test hands on whatever it was given
        return unpack_failure(pack_failure(caught).join(), "j/1")


def test_exceptions_come_back_with_their_traceback() -> None:
    fault = raised(ValueError("no such thing"))
    assert type(fault) is ValueError
    assert str(fault) == "no such thing"
    assert isinstance(fault.__cause__, RemoteTraceback)
    assert "in raised" in str(fault.__cause__)


@pytest.mark.parametrize("fault", [Forgetful(1, 2), Holder(threading.Lock()), Holder(b"x" * INLINE_BYTES)])
def test_exceptions_that_cannot_travel_leave_their_words(fault: BaseException) -> None:
    told = raised(fault)
    assert type(told) is RemoteError
    assert type(fault).__qualname__ in str(told)
    assert str(fault) in str(told)
    assert told.task_id == "j/1"


def test_an_endless_recursion_is_cut_short() -> None:
    def forever() -> None:
        forever()

    with pytest.raises(RecursionError) as caught:
        forever()
    packed = pack_failure(caught.value)
    assert packed.inline
    assert isinstance(unpack_failure(packed.join()), RecursionError)


def test_a_failure_of_a_call_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(CallFailed("gone", "crashed", "failed", "j")))
    assert (str(again), again.exit_class, again.state, again.task_id) == ("gone", "crashed", "failed", "j")
