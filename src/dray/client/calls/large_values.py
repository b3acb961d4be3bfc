"""Large values, beside the channel: brought to the hub and fetched by a few threads, each content once.

A value of up to 64 KiB travels inside its message. A larger one goes as a file into the folder of a hub of this home on
this machine, over HTTP to any other. A copy of it is taken when it is offered, so that the caller may go on writing to
its arrays (the file is one); what is too large to copy is sent before `offer` returns. Surprising rule: offering blocks
while too much waits to be sent, which is what keeps a loop over large arguments from filling the memory.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dray.client.futures.bell import Bell
from dray.client.reach.discovery import Target
from dray.errors import DrayError, HubUnavailable
from dray.functions.opening import ANYTHING, Opener
from dray.functions.values import Packed, Part
from dray.wire.local.blob_folder import BlobFolder, write_parts

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from dray.client.reach.blob_line import BlobLine

THREADS = 4
WAITING_BYTES = 256 << 20
COPIED_BYTES = 64 << 20
# Of what waits on this machine to be used so much stays in memory.
AHEAD_BYTES = 64 << 20
TRUSTED_S = 30.0
REMEMBERED = 4096
ASK_LIMIT_BYTES = 256 << 20
TRIES = 3


class Upload(concurrent.futures.Future[tuple[str, int]]):
    """A value on its way; gives its digest and size once the hub has it."""

    def __init__(self, digest: str, size: int) -> None:
        super().__init__()
        self.digest, self.size = digest, size
        self.ended_at = float("inf")
        self.users = 1
        # Whether it counts as waiting on this machine to be used.
        self.ahead = False


class LateResult:
    """A large result that is read when it is looked at, so that a map does not hold all of them at once."""

    __slots__ = ("_blobs", "_coming", "_digest", "_size")

    def __init__(self, blobs: Blobs, digest: str, size: int) -> None:
        self._blobs, self._digest, self._size = blobs, digest, size
        self._coming = blobs.fetch_ahead(digest, size)

    def open(self) -> Any:
        """The value."""
        if self._coming is None:
            return self._blobs.opener.value(self._blobs.read(self._digest, self._size))
        try:
            return self._blobs.opener.value(self._coming.result())
        finally:
            self._blobs.took(self._size)


class Blobs:
    """The blobs of one hub. Safe to use from several threads."""

    def __init__(
        self, find: Callable[[], Target], wake: Callable[..., Any], opener: Opener = ANYTHING
    ) -> None:
        self._find, self._wake, self.opener = find, wake, opener
        self._room = Bell()
        self._waiting_bytes = self._ahead_bytes = self._fetched_bytes = 0
        self._known: dict[str, Upload] = {}
        self._folder: BlobFolder | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._lines: weakref.WeakSet[BlobLine] = weakref.WeakSet()

    def offer(self, packed: Packed, lasting: bool = False) -> bytes | Upload:
        """The bytes of a small value; of a large one its upload, begun or shared with whoever offered it before.

        A `lasting` one is used by many calls: nobody releases it.
        """
        if packed.inline:
            return packed.join()
        near = self._find_near()
        # Before it is hashed, which takes longer than anybody likes to wait for a refusal.
        if near is not None:
            near.check(packed.size)
        elif packed.size > ASK_LIMIT_BYTES:
            self._try(lambda line: line.check_size(packed.size))
        digest = packed.digest()
        with self._room:
            known = self._known.get(digest)
            if known is not None and time.monotonic() - known.ended_at < TRUSTED_S and not _failed(known):
                known.users += 1
                return known
            upload = self._remember(Upload(digest, packed.size))
        if near is None or not self._hand_over(near, upload, packed.parts, lasting):
            self._offer_by_line(upload, packed, known is not None)
        return upload

    def _offer_by_line(self, upload: Upload, packed: Packed, ask_first: bool) -> None:
        if packed.size > COPIED_BYTES:
            self._carry(upload, packed.parts, ask_first)
        else:
            self._wait_for_room(packed.size)
            data = packed.join()
            self._threads().submit(self._carry_later, upload, data, ask_first)

    def send(self, packed: Packed) -> None:
        """Upload a large value that many calls use, and wait until the hub has it."""
        upload = self.offer(packed, lasting=True)
        if isinstance(upload, Upload):
            upload.result()

    def release(self, upload: Upload) -> None:
        """A call has used this argument up; where it was the only one, memory need not hold it any longer."""
        with self._room:
            upload.users -= 1
            if upload.users or not upload.ahead or self._folder is None:
                return
            upload.ahead = False
            self._ahead_bytes -= upload.size
        self._folder.drop(upload.digest)

    def fetch_ahead(self, digest: str, size: int) -> concurrent.futures.Future[bytearray] | None:
        """Begin to fetch a result that will be looked at soon; None where that is read as quickly, or later."""
        if self._find_near() is not None:
            return None
        with self._room:
            if self._fetched_bytes and self._fetched_bytes + size > WAITING_BYTES:
                return None
            self._fetched_bytes += size
        return self._threads().submit(self.read, digest, size)

    def took(self, size: int) -> None:
        """Somebody has looked at what was fetched ahead."""
        with self._room:
            self._fetched_bytes -= size

    def fetch(self, digest: str, size: int, done: Callable[[Any], None]) -> None:
        """Fetch a blob; `done` is called in the client's loop with its bytes, or with what went wrong."""
        self._threads().submit(self._bring, digest, size, done)

    def read(self, digest: str, size: int) -> bytearray:
        """Fetch a blob here and now."""
        near = self._find_near()
        if near is not None:
            with contextlib.suppress(OSError):  # the hub says it better
                return near.read(digest, size)
        data: bytearray = self._try(lambda line: line.get(digest, size))
        return data

    def close(self) -> None:
        """Give up what has not begun."""
        with self._room:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for line in list(self._lines):
            line.close()

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _remember(self, upload: Upload) -> Upload:
        if len(self._known) >= REMEMBERED:
            for digest in [name for name, one in self._known.items() if one.done()][: REMEMBERED // 2]:
                del self._known[digest]
        self._known[upload.digest] = upload
        return upload

    def _wait_for_room(self, size: int) -> None:
        self._room.wait_for(lambda: self._find_room(size))

    def _find_room(self, size: int) -> bool | None:
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES:
            return None
        self._waiting_bytes += size
        return True

    def _threads(self) -> ThreadPoolExecutor:
        with self._room:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(THREADS, "dray-blobs")
            return self._pool

    # --- by file ------------------------------------------------------------------------------------------------------

    def _find_near(self) -> BlobFolder | None:
        """The folder of the hub's blobs, where this program may put files into it. Once found it stays the one."""
        if self._folder is None:
            # Where it is away just now, whoever sends something will hear of that.
            with contextlib.suppress(DrayError):
                home = self._find().home
                folder = BlobFolder(f"{home}/blobs")
                self._folder = folder if home is not None and folder.is_near() else None
        return self._folder

    def _hand_over(self, near: BlobFolder, upload: Upload, parts: Sequence[Part], lasting: bool) -> bool:
        """Write a value to a file of the hub's; a thread waits for the disk. False where it cannot be written."""
        try:
            if near.renew(upload.digest):
                _end(upload)
                return True
            draft = near.draft()
            write_parts(draft, parts)
        except OSError:
            return False
        with self._room:
            if not lasting:
                upload.ahead = True
                self._ahead_bytes += upload.size
            is_far = upload.ahead and self._ahead_bytes > AHEAD_BYTES
        self._threads().submit(self._place, near, upload, draft, is_far)
        return True

    def _place(self, near: BlobFolder, upload: Upload, draft: str, is_far: bool) -> None:
        try:
            near.place(draft, upload.digest, drop=is_far)
        except OSError as fault:
            _end(upload, HubUnavailable(f"a large value did not reach the hub's folder {near.root}: {fault}"))
        else:
            _end(upload)

    # --- by line ------------------------------------------------------------------------------------------------------

    def _carry_later(self, upload: Upload, data: bytes, ask_first: bool) -> None:
        try:
            self._carry(upload, (data,), ask_first)
        finally:
            with self._room:
                self._waiting_bytes -= len(data)
                self._room.notify_all()

    def _carry(self, upload: Upload, parts: Sequence[Part], ask_first: bool) -> None:
        try:
            self._try(lambda line: line.put(upload.digest, parts, upload.size, ask_first))
        except BaseException as fault:  # noqa: BLE001 - whoever waits for the upload hears of it
            _end(upload, fault)
        else:
            _end(upload)

    def _bring(self, digest: str, size: int, done: Callable[[Any], None]) -> None:
        got: Any
        try:
            got = self.read(digest, size)
        except BaseException as fault:  # noqa: BLE001 - handed to whoever asked
            got = fault
        try:
            self._wake(done, got)
        except RuntimeError:
            return  # the loop has ended: nobody waits any more

    def _try(self, work: Callable[[BlobLine], Any]) -> Any:
        """Do something over this thread's own line; a line that broke is opened again."""
        from dray.client.reach.blob_line import BlobLine  # here: HTTP loads half of the mail package
        from dray.wire.reach.http_line import BROKEN

        for left in range(TRIES - 1, -1, -1):
            line: BlobLine | None = getattr(self._own, "line", None)
            fresh = line is None
            try:
                if line is None:
                    line = self._own.line = BlobLine(self._find())
                    self._lines.add(line)
                return work(line)
            except BROKEN as fault:
                self._own.line = None
                if line is not None:
                    line.close()
                if left == 0:
                    raise HubUnavailable(f"a large value did not get through: {fault}") from fault
                if fresh:
                    time.sleep(0.2)
            except DrayError:
                self._own.line = None
                if line is not None:
                    line.close()
                raise
        return None


def _end(upload: Upload, fault: BaseException | None = None) -> None:
    upload.ended_at = time.monotonic()
    if fault is not None:
        upload.set_exception(fault)
    else:
        upload.set_result((upload.digest, upload.size))


def _failed(upload: Upload) -> bool:
    return upload.done() and upload.exception() is not None
