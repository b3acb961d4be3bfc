"""A manifest from outside is never believed: whatever could lead out of a tree, or fill a disk, is refused by name."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from dray.errors import InvalidSnapshot
from dray.snapshots import manifest as forms
from dray.snapshots.manifest import File, Manifest, link_fault, make_manifest, pack_manifest, read_manifest

DATA = b"hello"
SHA = hashlib.sha256(DATA).digest()


def packed(
    files: list[File] | None = None, links: Any = (), folders: Any = (), chunks: Any = None, **other: Any
) -> bytes:
    listed = [File("a", len(DATA), SHA)] if files is None else files
    cut = [(SHA, len(DATA))] * len(listed) if chunks is None else chunks
    made = make_manifest(listed, list(links), list(folders), cut)
    return pack_manifest(msgspec.structs.replace(made, **other))


def test_what_is_sound_comes_back() -> None:
    files = [File("a", 5, SHA), File("b/c", 5, SHA, True)]
    found = read_manifest(packed(files, [("b/up", "../a"), ("l", "b/c")], ["d/e"]))
    assert (found.files, found.links, found.folders) == (files, [("b/up", "../a"), ("l", "b/c")], ["d/e"])
    assert found.size == 10
    recut = read_manifest(packed(files, [("b/up", "../a"), ("l", "b/c")], ["d/e"], [(SHA, 10)]))
    assert recut.sha == found.sha, "what is in a tree does not depend on how it was cut"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"files": [File("../a", 5, SHA)]}, "not a path below"),
        ({"files": [File("/etc/x", 5, SHA)]}, "not a path below"),
        ({"files": [File("a//b", 5, SHA)]}, "not a path below"),
        ({"files": [File("a/./b", 5, SHA)]}, "not a path below"),
        ({"files": [File("a\0b", 5, SHA)]}, "not a path below"),
        ({"files": [File("", 5, SHA)]}, "not a path below"),
        ({"files": [File("x" * 256, 5, SHA)]}, "longer than a name"),
        ({"files": [File("/".join("x" * 70), 5, SHA)]}, "deeper than 64"),
        ({"files": [File("a", 5, SHA), File("a", 5, SHA)]}, "twice"),
        ({"files": [File("a", 5, SHA), File("a/b", 5, SHA)]}, "both a folder and none"),
        ({"files": [File("l/b", 5, SHA)], "links": [("l", "elsewhere")]}, "both a folder and none"),
        ({"links": [("l", "../x")]}, "leads out of the tree"),
        ({"links": [("l", "/etc/passwd")]}, "leads out of the tree"),
        ({"links": [("d/l", "x/../../../y")]}, "down and up again"),
        ({"folders": ["../out"]}, "not a path below"),
        ({"files": [File("a", 6, SHA)]}, "6 bytes and its chunks 5"),
        ({"files": [File("a", 1 << 50, SHA)], "chunks": []}, "a size or a digest"),
        ({"files": [File("a", -5, SHA)]}, "a size or a digest"),
        ({"files": [File("a", 5, b"short")]}, "a size or a digest"),
        ({"chunks": [(SHA, 1 << 30)]}, "a chunk has a size"),
        ({"chunks": [(SHA, 5), (SHA, 0)]}, "a chunk has a size"),
        ({"sha": "0" * 64}, "its files come to"),
        ({"magic": "dray-snapshot-9"}, "no manifest that this version reads"),
    ],
)
def test_what_is_not_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSnapshot, match=words):
        read_manifest(packed(**wrong))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x93", b"[]", msgspec.msgpack.encode({"files": 1}), b"\x91" * 5000]
)
def test_bytes_of_another_kind_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidSnapshot):
        read_manifest(raw)


def test_a_bomb_is_refused_before_it_is_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Forty million names of no letters: each takes a byte here, and eight in memory.
    head = pack_manifest(Manifest(forms.MAGIC, "", [], [], [], []))[:-3]
    bomb = head + b"\x90\xdd" + (4 << 20).to_bytes(4) + b"\xa0" * (4 << 20) + b"\x90"
    with pytest.raises(InvalidSnapshot, match="length <= 100000"):
        read_manifest(bomb)
    # Every list may be as long as a tree; together they may not.
    monkeypatch.setattr(forms, "MOST_FILES", 2)
    with pytest.raises(InvalidSnapshot, match="at most 2 files, this one 3"):
        read_manifest(packed(links=[("l", "a")], folders=["d"]))


@pytest.mark.parametrize(
    ("path", "target", "sound"),
    [
        ("l", "a", True), ("d/l", "../a", True), ("d/e/l", "../../a/b", True), ("l", "./a", True),
        ("l", "..", False), ("d/l", "../..", False), ("l", "a/..", False), ("l", "", False), ("l", "a\0", False),
    ],
)  # fmt: skip
def test_links_stay_inside(path: str, target: str, sound: bool) -> None:
    assert (link_fault(path, target) == "") == sound
