"""Folders are packed the same way each time, little changes with a small edit, and nothing half written is taken."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from dray.errors import InvalidSnapshot
from dray.snapshots import walking
from dray.snapshots.cutting import LEAST_BYTES, MOST_BYTES, cut_file
from dray.snapshots.memory import memory_path
from dray.snapshots.packing import Changed, Packed, pack


@pytest.fixture(autouse=True)
def _own_memory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def content(packed: Packed) -> bytes:
    return b"".join(packed.read(digest) for digest, _ in packed.manifest.chunks)


def test_cuts_follow_what_is_there() -> None:
    data = random.Random(3).randbytes(6_000_000)
    chunks = list(cut_file(io.BytesIO(data)))
    assert b"".join(chunks) == data
    assert all(LEAST_BYTES <= len(chunk) <= MOST_BYTES for chunk in chunks[:-1])
    # Bytes put in move what is behind them, and no cut but those beside them.
    moved = list(cut_file(io.BytesIO(data[:2_000_001] + b"put in" + data[2_000_001:])))
    assert len({*moved} - {*chunks}) <= 2
    plain = list(cut_file(io.BytesIO(bytes(3_000_000))))
    assert (b"".join(plain), len({*plain}) <= 2) == (bytes(3_000_000), True), "one chunk over and over"


def test_equal_folders_are_one_snapshot_and_edits_change_little(tmp_path: Path) -> None:
    draw = random.Random(5)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    for number in range(300):
        data = draw.randbytes(draw.randint(0, 9000))
        for name in ("one", "two"):
            (tmp_path / name / f"f{number:03}").write_bytes(data)
    one, two = pack(str(tmp_path / "one")), pack(str(tmp_path / "two"))
    assert one.manifest == two.manifest
    assert content(one) == b"".join(
        (tmp_path / "one" / file.path).read_bytes() for file in one.manifest.files
    )
    (tmp_path / "one" / "f100a").write_bytes(b"new")
    edited = pack(str(tmp_path / "one"))
    assert len({*edited.manifest.chunks} - {*one.manifest.chunks}) <= 2
    old = os.stat(tmp_path / "one" / "f000").st_mtime - 10
    for path in (tmp_path / "one").iterdir():
        os.utime(path, (old, old))


def test_a_file_that_does_not_hold_still_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000)
    packed = pack(str(tmp_path))
    path.write_bytes(b"y" * 1000)
    with pytest.raises(Changed):
        packed.read(packed.manifest.chunks[0][0])
    # Somebody appends to it whenever it is looked at.
    stat = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        with path.open("ab") as file:
            file.write(b"z")
        return stat(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(InvalidSnapshot, match="is written to while it is packed"):
        pack(str(tmp_path))


def test_too_many_files_are_found_out_while_they_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"{number}").touch()
    with pytest.raises(InvalidSnapshot, match="more than 30 files"):
        walking.Walk(str(tmp_path), {}, 30).run()
    (tmp_path / ".gitignore").write_text("[0-2]*\n")
    assert len(walking.Walk(str(tmp_path), {}, 30).run().files) == 17 + 1


def test_a_damaged_memory_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    first = pack(str(tmp_path))
    for path in memory_path(str(tmp_path)).parent.iterdir():
        path.write_bytes(b"\x00broken")
    assert pack(str(tmp_path)).manifest == first.manifest
