"""Blobs as files that several programs share: whole or not there, and gone only when they are old."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import NoSpace, TooLarge
from dray.wire.local.blob_folder import BlobFolder, write_parts

OLD_S, NOW_S = 1_000.0, 2_000.0


@pytest.fixture
def folder(tmp_path: Path) -> BlobFolder:
    made = BlobFolder(str(tmp_path / "blobs"))
    made.offer(1 << 20, 0)
    return made


def put(folder: BlobFolder, body: bytes, at_s: float = NOW_S) -> str:
    digest = hashlib.sha256(body).hexdigest()
    draft = folder.draft()
    write_parts(draft, [body])
    folder.place(draft, digest)
    os.utime(folder.path(digest), (at_s, at_s))
    return digest


def test_a_blob_is_there_whole_under_its_digest_and_can_be_written_to(folder: BlobFolder) -> None:
    digest = put(folder, b"whole")
    assert Path(folder.path(digest)).read_bytes() == b"whole"
    assert os.listdir(f"{folder.root}/drafts") == []
    data = folder.read(digest, 5)
    data[0] = 0
    folder.drop(digest)
    assert folder.read(digest, 5) == b"whole"
    with pytest.raises(ConnectionError, match="broke off after 5"):
        folder.read(digest, 6)
    with pytest.raises(FileNotFoundError):
        folder.read("ab" * 32, 1)
    folder.drop("ab" * 32)


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.binary(max_size=40), max_size=2_500))
def test_parts_are_written_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("parts") / "file"
    write_parts(str(path), [memoryview(part) for part in parts])
    assert path.read_bytes() == b"".join(parts)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, parts: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space"):
        write_parts(str(tmp_path / "file"), [b"body"])
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_old_goes(folder: BlobFolder) -> None:
    old, young = put(folder, b"old", OLD_S), put(folder, b"young")
    assert folder.remove(old, NOW_S)
    assert not folder.remove(young, NOW_S)
    assert (os.path.exists(folder.path(old)), os.path.exists(folder.path(young))) == (False, True)
    assert folder.remove(old, NOW_S), "what is not there is gone"


def test_who_finds_an_old_blob_or_puts_it_there_again_has_time_to_refer_to_it(folder: BlobFolder) -> None:
    digest = put(folder, b"old", OLD_S)
    assert folder.renew(digest)
    assert not folder.remove(digest, NOW_S)
    os.utime(folder.path(digest), (OLD_S, OLD_S))
    write_parts(draft := folder.draft(), [b"old"])
    folder.place(draft, digest)
    assert not folder.remove(digest, NOW_S)
    assert not folder.renew("ab" * 32)


@pytest.mark.parametrize(
    ("step", "act"),
    [
        ("rename", lambda folder, digest: put(folder, b"one")),
        ("utime", lambda folder, digest: folder.renew(digest)),
        ("unlink", lambda folder, digest: folder.remove(digest, NOW_S)),
    ],
)
def test_nothing_goes_while_something_comes(
    folder: BlobFolder, monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[BlobFolder, str], Any]
) -> None:
    digest = put(folder, b"one", OLD_S)
    real, seen = getattr(os, step), []

    def watched(*args: Any, **named: Any) -> Any:
        other = os.open(folder.root, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_NB | (fcntl.LOCK_SH if step == "unlink" else fcntl.LOCK_EX))
            seen.append("free")
        except BlockingIOError:
            seen.append("locked")
        finally:
            os.close(other)
        return real(*args, **named)

    monkeypatch.setattr(os, step, watched)
    act(folder, digest)
    assert seen[0] == "locked"


def test_drafts_of_programs_that_are_gone_go(folder: BlobFolder) -> None:
    for name, at_s in (("left", OLD_S), ("under way", NOW_S)):
        path = Path(folder.draft()).with_name(name)
        path.write_bytes(b"half")
        os.utime(path, (at_s, at_s))
    folder.remove_drafts(NOW_S)
    assert os.listdir(f"{folder.root}/drafts") == ["under way"]


def test_terms(folder: BlobFolder, tmp_path: Path) -> None:
    assert folder.is_near()
    folder.check(1 << 20)
    with pytest.raises(TooLarge, match="limit of 1048576"):
        folder.check((1 << 20) + 1)
    folder.offer(1 << 20, 1 << 62)
    with pytest.raises(NoSpace, match="no room for 5"):
        folder.check(5)


def test_a_folder_of_another_machine_or_of_nobody_is_not_near(folder: BlobFolder, tmp_path: Path) -> None:
    assert not BlobFolder(str(tmp_path / "none")).is_near()
    wrong: list[Any] = [{"machine": "another"}, [], "x"]
    for told in wrong:
        path = tmp_path / str(type(told).__name__)
        path.mkdir()
        (path / "terms.json").write_text(json.dumps(told))
        assert not BlobFolder(str(path)).is_near()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "terms.json").write_text("{")
    assert not BlobFolder(str(tmp_path / "broken")).is_near()
