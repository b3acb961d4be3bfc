"""Plain data is opened, anything that could run code is not: pickles written by hand, as a hostile worker would."""

from __future__ import annotations

import collections
import copyreg
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from dray.functions.commands import CommandFailed, Output
from dray.functions.failures import RemoteError, pack_failure
from dray.functions.opening import PLAIN, describe, unpack_plain
from dray.functions.values import DamagedValue, UnsafeValue, pack


def wrap(stream: bytes) -> bytes:
    return struct.pack("<4sIQ", b"DV1\0", 1, len(stream)) + stream


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        1.5,
        "text",
        b"bytes",
        bytearray(b"x"),
        [1, [2]],
        (1, (2,)),
        {"a": {1, 2}},
        frozenset({3}),
    ],
    ids=repr,
)
def test_plain_data_is_opened(value: Any) -> None:
    opened = unpack_plain(pack(value).join())
    assert (opened, type(opened)) == (value, type(value))
    assert describe(pack(value).join()) == type(value).__name__


def test_what_a_command_gave_is_plain_too() -> None:
    given = Output(b"out", b"err")
    assert unpack_plain(pack(given).join()) == given
    failed = PLAIN.failure(pack_failure(CommandFailed("exit code 3", 3, given)).join(), "j/1")
    assert isinstance(failed, CommandFailed)
    assert (failed.code, failed.output) == (3, given)


class Sprung(Exception):
    def __reduce__(self) -> Any:
        return os.mkdir, (self.args[0],)


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nmkdir\n(V%s\ntR.",
        b"(V%s\nios\nmkdir\n.",
        b"(cos\nmkdir\nV%s\no.",
        b"\x80\x04\x8c\x02os\x94\x8c\x05mkdir\x94\x93V%s\n\x85R.",
        b"\x80\x02cbuiltins\neval\nV__import__('os').mkdir('%s')\n\x85R.",
        b"\x80\x02cdray.functions.commands\nrun_command\n(]Vmkdir\na}V\nV%s\ntR.",
        b"\x80\x02cdray.functions.commands\nsubprocess.run\n(lVmkdir\naV%s\natR.",
        b"\x80\x02\x82\xf0V%s\n\x85R.",
    ],
)
def test_a_pickle_that_names_something_runs_nothing(stream: bytes, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    copyreg.add_extension("os", "mkdir", 0xF0)
    try:
        packed = wrap(stream % os.fsencode(trap))
        with pytest.raises((UnsafeValue, DamagedValue)):
            unpack_plain(packed)
        assert describe(packed).startswith(("pickle of ", "no value"))
    finally:
        copyreg.remove_extension("os", "mkdir", 0xF0)
    assert not trap.exists()


def test_an_exception_is_told_and_not_revived(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    packed = pack(("mod.Sprung", "its words", "where", pack(Sprung(str(trap))).join()))
    fault = PLAIN.failure(packed.join(), "j/1")
    assert isinstance(fault, RemoteError)
    assert "mod.Sprung: its words" in str(fault)
    assert not trap.exists()


def test_other_classes_and_persistent_ids_are_refused() -> None:
    with pytest.raises(UnsafeValue, match="OrderedDict"):
        unpack_plain(pack(collections.OrderedDict(a=1)).join())
    assert describe(pack(Path("/")).join()).startswith("pickle of pathlib")
    with pytest.raises(UnsafeValue, match="outside"):
        unpack_plain(wrap(b"Pout\n."))
    with pytest.raises(DamagedValue):
        unpack_plain(wrap(pickle.dumps([1, 2])[:-3]))
