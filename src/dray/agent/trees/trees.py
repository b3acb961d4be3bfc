"""The trees of one agent: fetched, checked, laid out for each attempt, and cleared away behind it.

Owns what an attempt waits for before its process may start; knows nothing of hubs but where blobs come from, and
nothing of the supervisor. A failure is told as what it is: the job's (no such snapshot, another SHA-256 than it says),
or this machine's, for which nobody is charged. Surprising rule: a tree that is in its place is whole, whoever laid it
out, so that an agent which comes after another goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from dray.agent.decide.prewarming import Warm
from dray.agent.runners.blobs import Blobs, Refused
from dray.agent.runners.home import remove_as
from dray.agent.tasks.accounts import Account
from dray.agent.tasks.aside import Aside
from dray.agent.trees.environments import Environments
from dray.agent.trees.faults import TreeFault
from dray.agent.trees.file_cache import FileCache, name_of, spread
from dray.agent.trees.laying import Owner, can_clone, lay_out
from dray.errors import DrayError
from dray.snapshots.manifest import MOST_MANIFEST_BYTES, File, Manifest, digest_of, read_manifest

# The disk says no: not the hub, and not for a moment.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)
MANIFESTS = 32
# So many of them are told to the hub.
MOST_TOLD = 8
# What is got ready ahead of time, at once, and how gently.
PORTION_BYTES, PORTION_FILES, GENTLE = 16 << 20, 500, 15
# While a hub is away its values are asked for again.
PAUSE_S = 5.0
TRIES = 3
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("dray.agent.trees")


class TreeAsk(NamedTuple):
    """The tree that an attempt asks for."""

    uid: str
    snapshot_id: str
    sha: str
    account: Account
    environment: str = ""


class Told(NamedTuple):
    """Who hears of it: how a tree went, that something was got ready, what is here by now in the hub's words."""

    laid: Callable[[str, TreeFault | None], None]
    warmed: Callable[[Warm], None]
    changed: Callable[[tuple[str, ...]], None]


class Trees:
    """Of one agent."""

    def __init__(self, base: Path, blobs: Blobs, most_bytes: int, told: Told) -> None:
        self._base, self._blobs, self._told = base / "snapshots", blobs, told
        self._stage, self._trees = f"{self._base}/stage", f"{self._base}/trees"
        self._aside, self._gently = Aside(2, "dray-trees"), Aside(1, "dray-prewarming")
        self._warming: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._most = most_bytes
        self._files: FileCache | None = None
        self._clones = False
        self.environments = Environments(str(self._base), self._aside)

    def open(self, is_foreign: bool) -> None:
        """Make the folders; blocks for as long as it takes to look at what is kept."""
        # Through these tasks of others reach their own, and list nothing.
        mode = 0o711 if is_foreign else 0o700
        for folder, wanted in ((str(self._base), mode), (self._trees, mode), (self._stage, 0o700)):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, wanted)
        for name in os.listdir(self._stage):
            shutil.rmtree(f"{self._stage}/{name}", ignore_errors=True)
        self._files = FileCache(f"{self._base}/files", self._most)
        self._clones = can_clone(self._stage)
        self.environments.open(mode)

    def path(self, uid: str) -> str:
        """Where the tree of an attempt is, or will be."""
        return f"{self._trees}/{uid}"

    def close(self) -> None:
        """Give up what is under way: another agent takes it up."""
        for task in self._tasks.values():
            task.cancel()
        self.cool()
        self.environments.close()
        self._aside.close()
        self._gently.close()

    # --- laying out ---------------------------------------------------------------------------------------------------

    def begin(self, ask: TreeAsk) -> None:
        """Lay a tree out, however long that takes."""
        self.use(ask.uid, ask.environment, ask.account)
        if ask.uid not in self._tasks:
            task = self._tasks[ask.uid] = asyncio.ensure_future(self._lay(ask))
            task.add_done_callback(lambda done: self._tasks.pop(ask.uid, None))

    def use(self, uid: str, environment: str, account: Account) -> None:
        """An attempt runs in an environment, or will: it stays until `drop`."""
        if environment:
            self.environments.used[uid] = self.environments.place(environment, account)

    def drop(self, uid: str) -> None:
        """An attempt has ended: what it waited for is given up, what it ran in goes."""
        self.environments.used.pop(uid, None)
        task = self._tasks.get(uid)
        if task is not None:
            task.cancel()
        if os.path.lexists(self.path(uid)):
            asyncio.ensure_future(self._aside.do(self._remove, uid)).add_done_callback(_forget)

    def keep_only(self, uids: Collection[str]) -> None:
        """Clear away what earlier attempts have left."""
        for name in os.listdir(self._trees):
            if name not in uids:
                self.drop(name)

    async def _lay(self, ask: TreeAsk) -> None:
        fault: TreeFault | None = None
        try:
            if ask.environment:
                await self.environments.have(ask.environment, ask.account, self._fetch_environment)
            if ask.snapshot_id and not await self._aside.do(os.path.lexists, self.path(ask.uid)):
                manifest = await self._find(ask.snapshot_id)
                _check_sha(ask, manifest)
                await self._lay_out(ask, manifest)
        except TreeFault as found:
            fault = found
        except (DrayError, ValueError) as found:
            fault = TreeFault(f"{_name(ask)} cannot be used: {found}")
        except OSError as found:
            fault = TreeFault(f"{_name(ask)} cannot be had on this worker: {found}", ours=True)
        if fault is not None:
            logger.warning("attempt %s: %s", ask.uid, fault)
        self._told.laid(ask.uid, fault)
        await self._tell_changed()

    # --- getting ready ------------------------------------------------------------------------------------------------

    def warm(self, step: Warm, account: Account) -> None:
        """Get something ready at leisure, until `cool`."""
        self._warming = asyncio.ensure_future(self._warm(step, account))

    def cool(self) -> None:
        """Stop with that."""
        if self._warming is not None:
            self._warming.cancel()
            self._warming = None

    async def _warm(self, step: Warm, account: Account) -> None:
        try:
            if step.environment:
                fetch = self._fetch_environment
                await self.environments.have(step.environment, account, fetch, gently=True)
            else:
                await self._warm_files(await self._find(step.snapshot_id))
        except (TreeFault, DrayError, ValueError, OSError) as fault:
            # Whoever needs it hears of it then.
            logger.info("could not be got ready: %s", fault)
        else:
            await self._tell_changed()
        self._warming = None
        self._told.warmed(step)

    async def _warm_files(self, manifest: Manifest) -> None:
        """Make the files of a tree, some at a time, by one transfer and by one thread that gives way to all others."""
        files = self._files
        assert files is not None  # open() comes first
        async with self._making:
            missing = await self._whole(self._gently, files.find_missing, manifest.files)
            for some in _portions(missing):
                wanted = {name_of(file) for file in some}
                paths = {}
                for digest in await self._aside.do(_chunks_of, manifest, wanted):
                    paths[digest] = await self._fetch(digest.hex(), "")
                await self._whole(self._gently, _make_gently, files, manifest, wanted, paths)
            await self._whole(self._aside, files.trim, {name_of(file) for file in manifest.files})

    async def _tell_changed(self) -> None:
        """Say what is here. Of trees only those that were used last, and are whole."""
        files = self._files
        assert files is not None  # as above
        async with self._making:
            lately = list(self._manifests.values())[-MOST_TOLD:]
            whole = await self._whole(self._aside, _find_whole, files, lately)
        trees = tuple(f"snapshot {manifest.sha}" for manifest in whole)
        self._told.changed((*(f"environment {name}" for name in self.environments.list_built()), *trees))

    async def _whole(self, aside: Aside, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work on kept files: one thread at a time, also where whoever asked for it has gone meanwhile."""
        doing = asyncio.ensure_future(aside.do(work, *args, **kwargs))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise

    async def _find(self, snapshot_id: str) -> Manifest:
        known = self._manifests.get(snapshot_id)
        if known is None:
            digest = digest_of(snapshot_id)
            if not digest:
                raise TreeFault(
                    f"snapshot {snapshot_id!r} is none of this hub's: an id is snap- and 64 of 0-9 a-f "
                    "(`dray submit --snapshot` makes one)"
                )
            path = await self._fetch(digest, snapshot_id)
            known = await self._aside.do(_read, path)
        self._manifests[snapshot_id] = known
        self._manifests.move_to_end(snapshot_id)
        while len(self._manifests) > MANIFESTS:
            self._manifests.popitem(last=False)
        return known

    async def _lay_out(self, ask: TreeAsk, manifest: Manifest) -> None:
        for left in range(TRIES - 1, -1, -1):
            await self._have(manifest)
            try:
                await self._aside.do(self._lay_now, ask, manifest)
            except FileNotFoundError:
                # Swept by whoever came between; or the stage is gone.
                if not left:
                    raise
                os.makedirs(self._stage, 0o700, exist_ok=True)
            else:
                return

    def _lay_now(self, ask: TreeAsk, manifest: Manifest) -> None:
        files = self._files
        assert files is not None  # open() comes first
        account = ask.account
        uid = account.uid if account.is_foreign else os.geteuid()
        owner = Owner(account.uid, account.gid, uid != 0) if account.is_foreign else Owner(-1, -1, uid != 0)
        lay_out(
            manifest,
            self._stage,
            self.path(ask.uid),
            lambda file: files.path(name_of(file)),
            owner,
            self._clones,
        )

    async def _have(self, manifest: Manifest) -> None:
        """Have all files of a tree here: fetch the chunks of those that are not, and make them."""
        files = self._files
        assert files is not None  # as above
        async with self._making:
            missing = await self._whole(self._aside, files.find_missing, manifest.files)
            wanted = {name_of(file) for file in missing}
            if wanted:
                digests = await self._aside.do(_chunks_of, manifest, wanted)
                found = await asyncio.gather(*(self._fetch(one.hex(), "") for one in digests))
                paths = dict(zip(digests, found, strict=True))
                await self._whole(self._aside, files.make, manifest, wanted, paths.__getitem__)
            await self._whole(self._aside, files.trim, {name_of(file) for file in manifest.files})

    async def _fetch_environment(self, digest: str) -> str:
        return await self._fetch(digest, f"env-{digest}")

    async def _fetch(self, digest: str, named: str) -> str:
        while True:
            try:
                return await self._blobs.fetch(digest)
            except Refused as fault:
                what = named or f"chunk {digest[:12]} of the snapshot"
                raise TreeFault(f"{what} cannot be had: {fault}") from None
            except OSError as fault:
                if fault.errno is not None and fault.errno in _DISK:
                    raise
                logger.info("blob %s did not come yet: %s", digest, fault)
            except DrayError as fault:
                logger.info("blob %s did not come yet: %s", digest, fault)
            await asyncio.sleep(PAUSE_S)

    # --- clearing away ------------------------------------------------------------------------------------------------

    def _remove(self, uid: str) -> None:
        path = self.path(uid)
        found = os.lstat(path)
        if found.st_uid != os.geteuid():
            # What is in it is that account's, and goes by its hand.
            remove_as(found.st_uid, found.st_gid, path)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _read(path: str) -> Manifest:
    with open(path, "rb") as file:
        return read_manifest(file.read(MOST_MANIFEST_BYTES + 1))


def _name(ask: TreeAsk) -> str:
    return " and ".join(filter(None, (ask.snapshot_id, ask.environment)))


def _check_sha(ask: TreeAsk, manifest: Manifest) -> None:
    if ask.sha and ask.sha != manifest.sha:
        raise TreeFault(
            f"snapshot {ask.snapshot_id} is not what the job says: its files come to the SHA-256 {manifest.sha}, and "
            f"snapshot_sha is {ask.sha}"
        )


def _chunks_of(manifest: Manifest, wanted: Collection[str]) -> list[bytes]:
    """The chunks in which any of these files is."""
    found = (parts for file, parts in spread(manifest) if name_of(file) in wanted)
    return list(dict.fromkeys(digest for parts in found for digest, _, _ in parts))


def _portions(missing: Sequence[File]) -> Iterator[list[File]]:
    """Files in portions that take a moment each: what waits behind one waits no longer."""
    some: list[File] = []
    for file in missing:
        some.append(file)
        if sum(one.size for one in some) >= PORTION_BYTES or len(some) >= PORTION_FILES:
            yield some
            some = []
    if some:
        yield some


def _make_gently(files: FileCache, manifest: Manifest, wanted: set[str], paths: Mapping[bytes, str]) -> None:
    if sys.platform == "linux":
        # Of this thread alone, which does nothing else.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GENTLE)
    files.make(manifest, wanted, paths.__getitem__)


def _find_whole(files: FileCache, manifests: Sequence[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if files.has_all(manifest)]


def _forget(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (fault := done.exception()) is not None:
        logger.warning("a tree could not be cleared away: %s", fault)
