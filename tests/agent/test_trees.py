"""Trees on a worker: made from what is kept, made again where that was damaged or swept, and got ready ahead of time.

Chunks lie in the folder of a hub of the same home, so that they are there or not as the test wants it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dray.agent.decide.prewarming import Warm
from dray.agent.runners.blobs import Blobs
from dray.agent.tasks.accounts import OWN
from dray.agent.trees.faults import TreeFault
from dray.agent.trees.trees import Told, TreeAsk, Trees
from dray.snapshots.manifest import PREFIX, pack_manifest
from dray.snapshots.packing import pack

CACHE = 1_000_000


class Bench:
    """One worker's trees, and the folder that its hub keeps blobs in."""

    def __init__(self, root: Path) -> None:
        self.root, self.near = root, root / "near"
        self.ends: dict[str, TreeFault | None] = {}
        self.warmed: list[Warm] = []
        self.have: tuple[str, ...] = ()
        for name in ("near", "worker", "cache"):
            (root / name).mkdir(exist_ok=True)
        self.open()

    def open(self) -> None:
        blobs = Blobs(self.root / "cache", str(self.near), 1 << 30, lambda: None)
        self.trees = Trees(
            self.root / "worker", blobs, CACHE, Told(self.ends.__setitem__, self.warmed.append, self._changed)
        )
        self.trees.open(is_foreign=False)

    def _changed(self, have: tuple[str, ...]) -> None:
        self.have = have

    def bring(self, name: str, **files: bytes) -> tuple[str, str]:
        """Put a folder where the hub has it; gives its id and its SHA."""
        folder = self.root / name
        folder.mkdir()
        for file, data in files.items():
            (folder / file).write_bytes(data)
        packed = pack(str(folder))
        raw = pack_manifest(packed.manifest)
        for data in (raw, *(packed.read(digest) for digest, _ in packed.manifest.chunks)):
            digest = hashlib.sha256(data).hexdigest()
            (self.near / digest[:2]).mkdir(exist_ok=True)
            (self.near / digest[:2] / digest).write_bytes(data)
        return PREFIX + hashlib.sha256(raw).hexdigest(), packed.manifest.sha

    async def lay(self, uid: str, snapshot: tuple[str, str]) -> TreeFault | None:
        self.trees.begin(TreeAsk(uid, *snapshot, OWN))
        await until(lambda: uid in self.ends)
        return self.ends[uid]

    def read(self, uid: str, file: str) -> bytes:
        return Path(self.trees.path(uid), file).read_bytes()

    def kept(self) -> list[Path]:
        return sorted((self.root / "worker" / "snapshots" / "files").glob("??/*"))


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():  # noqa: ASYNC110 - what is waited for is told by a callback that several tests read
            await asyncio.sleep(0.005)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "notes"))
    return Bench(tmp_path)


def play(bench: Bench, story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story()
        bench.trees.close()

    asyncio.run(whole())


def test_a_full_cache_lets_the_oldest_go_and_takes_nothing_from_whoever_runs(bench: Bench) -> None:
    first = bench.bring("first", a=os.urandom(700_000))
    second = bench.bring("second", b=os.urandom(700_000))
    huge = bench.bring("huge", c=os.urandom(3_000_000))

    async def story() -> None:
        assert await bench.lay("u1", first) is None
        assert await bench.lay("u2", second) is None
        assert len(bench.kept()) == 1, "no room for both"
        assert await bench.lay("u3", huge) is None, "also what is larger than all of it"
        assert bench.read("u1", "a") == (bench.root / "first/a").read_bytes()
        assert bench.read("u2", "b") == (bench.root / "second/b").read_bytes()
        # Said once a tree is laid, and not before.
        await until(lambda: bench.have == (f"snapshot {huge[1]}",))

    play(bench, story)


def test_what_is_swept_between_two_tasks_is_made_again(bench: Bench) -> None:
    snapshot = bench.bring("one", a=b"x" * 200_000, b=b"y")

    async def story() -> None:
        assert await bench.lay("u1", snapshot) is None
        for path in bench.kept():
            path.unlink()
        # Two at once, of which each finds that the other is at it.
        bench.trees.begin(TreeAsk("u2", *snapshot, OWN))
        assert await bench.lay("u3", snapshot) is None
        await until(lambda: "u2" in bench.ends)
        assert bench.ends["u2"] is None
        assert (bench.read("u2", "b"), bench.read("u3", "b")) == (b"y", b"y")

    play(bench, story)


def test_an_agent_that_died_while_it_unpacked_leaves_nothing_in_the_way(bench: Bench) -> None:
    snapshot = bench.bring("one", a=b"x" * 200_000)
    base = bench.root / "worker" / "snapshots"
    sha = hashlib.sha256(b"x" * 200_000).hexdigest()
    # As it is left behind by one that was killed: half a file, half a tree, and a file that nobody vouches for.
    (base / "files" / sha[:2]).mkdir()
    (base / "files" / sha[:2] / f"{sha}.deadbeef").write_bytes(b"x" * 1000)
    (base / "files" / sha[:2] / sha).write_bytes(b"x" * 1000)
    (base / "stage" / "half" / "pkg").mkdir(parents=True)
    bench.trees.close()
    bench.open()
    assert (bench.kept(), list((base / "stage").iterdir())) == ([], [])

    async def story() -> None:
        assert await bench.lay("u1", snapshot) is None
        assert bench.read("u1", "a") == b"x" * 200_000

    play(bench, story)


def test_a_chunk_that_is_not_what_it_says_makes_no_tree(bench: Bench) -> None:
    snapshot = bench.bring("one", a=b"x" * 200_000)
    for path in bench.near.glob("??/*"):
        if path.stat().st_size >= 200_000:
            path.write_bytes(b"z" * 200_000)

    async def story() -> None:
        fault = await bench.lay("u1", snapshot)
        assert fault is not None
        assert "and the manifest says" in str(fault)
        assert bench.kept() == []

    play(bench, story)
    assert not os.path.lexists(bench.trees.path("u1"))


def test_what_was_got_ready_needs_no_hub_afterwards(bench: Bench) -> None:
    snapshot = bench.bring("one", a=b"x" * 200_000, b=b"y")
    step = Warm(*snapshot, "", "ann")

    async def story() -> None:
        bench.trees.warm(step, OWN)
        await until(lambda: bench.warmed == [step])
        assert bench.have == (f"snapshot {snapshot[1]}",)
        for path in bench.near.glob("??/*"):
            path.unlink()
        assert await bench.lay("u1", snapshot) is None
        assert bench.read("u1", "b") == b"y"
        # What is stopped leaves whole files alone behind, and is nobody's fault.
        other = bench.bring("two", **{f"f{number}": os.urandom(40_000) for number in range(20)})
        bench.trees.warm(Warm(*other, "", "ann"), OWN)
        await asyncio.sleep(0)
        bench.trees.cool()
        assert await bench.lay("u2", other) is None
        assert bench.warmed == [step]

    play(bench, story)
