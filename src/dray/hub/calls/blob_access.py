"""Whose large values are whose: a blob is given to those who may see a job that uses it, and to nobody else.

A digest is a name, no key: whoever learns one may not read what is behind it, nor make a job of his own refer to it.
What a user has just uploaded is his until a job refers to it; a worker may read what the jobs use whose attempts it
holds. Surprising rule: programs that come by the socket of the hub's home are not asked when they refer to a blob. They
belong to the account that owns the folder of blobs, put files there by themselves, and could read all of it anyway.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from dray.core.lifecycle.state.state import State
from dray.core.model.specs.spec import unpack_spec
from dray.hub.access.caller import Caller
from dray.hub.calls.blob_quotas import BlobShares
from dray.hub.calls.blobs import Blobs, unknown_blob
from dray.hub.store.base import HOLDS, Store
from dray.snapshots.manifest import digest_of as manifest_digest

# So many uploads are remembered that no job refers to yet; they leave by age, as the blobs themselves do.
REMEMBERED = 65_536
WorkersOf = Callable[[str], Iterable[str]]


class BlobAccess:
    """The rule for one hub. `workers_of` gives the workers that a token speaks for."""

    def __init__(
        self,
        blobs: Blobs,
        store: Store,
        state: Callable[[], State],
        workers_of: WorkersOf,
        most_bytes: int = 1 << 60,
    ) -> None:
        self._shares = BlobShares(blobs, store, most_bytes)
        self._blobs, self._store, self._state, self._workers_of = blobs, store, state, workers_of
        self._uploads: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def make_room(self, caller: Caller, size: int) -> None:
        """Refuse an upload of so many bytes where a user has too much here; what a worker brings is its job's."""
        if caller.may("submit"):
            await self._shares.make_room(caller.user, size)

    def uploaded(self, caller: Caller, digest: str, size: int) -> None:
        """Note who has brought a blob: he has shown that he knows what is in it."""
        if caller.may("submit"):
            self._shares.add(caller.user, digest, size)
            self._uploads.pop((digest, caller.user), None)
            self._uploads[digest, caller.user] = None
            if len(self._uploads) > REMEMBERED:
                self._uploads.popitem(last=False)

    def check(self, caller: Caller, digest: str) -> None:
        """Raise for a blob that is not to be had what one raises that is not there."""
        if not self.may_read(caller, digest):
            raise unknown_blob(digest)

    def may_read(self, caller: Caller, digest: str) -> bool:
        """Whether this caller may have what is in a blob."""
        if caller.may("admin"):
            return True
        if (caller.may("read") or caller.may("submit")) and self._is_users(caller.user, digest):
            return True
        return caller.may("worker") and self._is_held(caller.token_id, digest)

    def missing(self, caller: Caller, digests: Sequence[str]) -> list[str]:
        """Give those that are not there for a caller who wants a job to refer to them."""
        gone = self._blobs.missing(digests)
        if caller.local or caller.may("admin"):
            return gone
        known = set(gone)
        return gone + [
            digest
            for digest in digests
            if digest not in known
            and not self._is_users(caller.user, digest)
            and self._store.is_referred(digest)
        ]

    async def lacking(self, caller: Caller, digests: Sequence[str]) -> list[str]:
        """The same as `missing` of a great many, most of which come from one place: the chunks of a snapshot."""
        gone = self._blobs.missing(digests)
        if caller.local or caller.may("admin"):
            return gone
        left = [digest for digest in digests if digest not in {*gone}]
        holders: dict[str, bool] = {}

        def find_foreign() -> list[str]:
            return [
                digest
                for digest in left
                if not self._is_users(caller.user, digest, holders) and self._store.is_referred(digest)
            ]

        return gone + await asyncio.to_thread(find_foreign)

    def _is_users(self, user: str, digest: str, holders: dict[str, bool] | None = None) -> bool:
        """Whether a user has brought a blob, or a job of his uses it, or the snapshot that one runs in does. `holders`:
        what is known of those already.
        """
        if (digest, user) in self._uploads or self._store.user_refers(digest, user):
            return True
        # Jobs whose rows are not written yet are known to memory.
        jobs, known = self._state().jobs, {} if holders is None else holders
        for name in self._store.fresh_refs(digest):
            if name.startswith(HOLDS):
                if name not in known:
                    known[name] = False  # nothing that holds itself is anybody's by that
                    known[name] = self._is_users(user, name.removeprefix(HOLDS), known)
                if known[name]:
                    return True
            elif (job := jobs.get(name)) is not None and job.user == user:
                return True
        return False

    def _is_held(self, token_id: str, digest: str) -> bool:
        state = self._state()
        held = {
            state.attempts[uid].job_id
            for worker in self._workers_of(token_id)
            for uid in state.held.get(worker, ())
        }
        # And what it was told to get ready for.
        told = [
            prewarm.job_id
            for worker in self._workers_of(token_id)
            for prewarm in state.prewarms.get(worker, {}).values()
        ]
        held.update(told)
        specs = (unpack_spec(state.jobs[job_id].spec) for job_id in held if job_id in state.jobs)
        trees = {HOLDS + tree for spec in specs if (tree := manifest_digest(spec.snapshot_id))}
        return bool(held) and self._store.job_refers(digest, [*held, *trees])
