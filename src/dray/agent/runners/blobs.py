"""Large values on this worker: fetched from the hub once, kept on disk by their digest, brought to the hub from here.

Transfers run in threads with connections of their own, since the loop must not wait for disks. What is fetched is
hashed on the way and taken only if it is what was asked for; the oldest go when the cache is full. With a hub of the
same home on the same machine nothing is sent at all: blobs are read where it keeps them, and files put there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

from dray.agent.tasks.aside import Aside
from dray.errors import HubUnavailable, NoSpace, TooLarge
from dray.wire.local.blob_folder import BlobFolder, check_digest, is_digest
from dray.wire.reach.dialling import Trust, Way, WrongCertificate
from dray.wire.reach.http_line import BROKEN, HubConnection
from dray.wire.reach.refusals import read_refusal

CHUNK_BYTES = 1 << 20
THREADS = 4
TIMEOUT_S = 60.0
RETRY_MIN_S, RETRY_MAX_S = 0.2, 10.0
TRIES = 8


class HubAccess(NamedTuple):
    """Where the hub is and how it is asked. `uid` is the account that runs it, where that was seen."""

    way: Way
    token: str
    trust: Trust
    uid: int = -1


class Refused(Exception):
    """The hub answers, and says no: asking again would not help. `too_large`: because of the size."""

    def __init__(self, message: str, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


class Blobs:
    """The cache of one agent and its traffic. `access` tells how to reach the hub, None while nobody knows.

    `near` is where the hub keeps its blobs if it shares this agent's home; empty if not.
    """

    def __init__(
        self, folder: Path, near: str, cap_bytes: int, access: Callable[[], HubAccess | None]
    ) -> None:
        self.folder, self._cap_bytes, self._access = folder, cap_bytes, access
        self._near = BlobFolder(near) if near else None
        self._threads = Aside(THREADS, "dray-blobs")
        self._connections = threading.local()
        # Where calls run as other accounts these are let through to names that they were told, and list nothing.
        self._modes = (0o711, 0o644) if folder.stat().st_mode & 0o001 else (0o750, 0o640)
        self._coming: dict[str, asyncio.Task[str]] = {}
        self._held: dict[str, int] = {}
        self._held_bytes = 0
        self._salt = secrets.token_hex(16)

    def close(self) -> None:
        self._threads.close()

    def scan(self) -> None:
        """Find what an earlier agent has left, oldest first; remove what it had not finished."""
        found = []
        for path in self.folder.glob("*"):
            with contextlib.suppress(OSError):
                path.chmod(self._modes[0])
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                if not is_digest(path.name):
                    path.unlink()
                else:
                    status = path.stat()
                    found.append((status.st_mtime, path.name, status.st_size))
        for _, name, size in sorted(found):
            self._keep(name, size)

    def path(self, name: str) -> str:
        return f"{self.folder}/{check_digest(name)[:2]}/{name}"

    # --- fetching -----------------------------------------------------------------------------------------------------

    def prefetch(self, digest: str) -> None:
        """Begin to fetch what a call will need."""
        if digest not in self._held and is_digest(digest) and not self._is_near(digest):
            _ = self._start(digest, f"/api/v1/blobs/{digest}", digest)

    async def fetch(self, digest: str) -> str:
        """The path of a blob; raises Refused where the hub does not give it."""
        if self._near is not None and self._is_near(digest):
            return self._near.path(digest)
        return await self._have(digest, f"/api/v1/blobs/{digest}", digest)

    async def fetch_value(self, job: str, index: int, token: str) -> str:
        """The path of a task's value: fetched once too, since a value never changes. Asked for with the token of the
        job that wants it, which may see no more than its user; and called by a name that no other user's can find.
        """
        name = hashlib.sha256(f"{self._salt}/{token}/{job}/{index}".encode()).hexdigest()
        return await self._have(name, f"/api/v1/jobs/{quote(job, safe='')}/value?task={index}", "", token)

    async def _have(self, name: str, target: str, digest: str, token: str = "") -> str:
        if name in self._held:
            self._held[name] = self._held.pop(name)  # now the youngest
            if self._is_there(name):
                return self.path(name)
            self._held_bytes -= self._held.pop(name)
        return await asyncio.shield(self._start(name, target, digest, token))

    def _is_near(self, digest: str) -> bool:
        return self._near is not None and os.access(self._near.path(digest), os.R_OK)

    def _is_there(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def _start(self, name: str, target: str, digest: str, token: str = "") -> asyncio.Task[str]:
        task = self._coming.get(name)
        if task is None:
            task = self._coming[name] = asyncio.ensure_future(self._fetch(name, target, digest, token))
            task.add_done_callback(lambda done: self._came(name, done))
        return task

    def _came(self, name: str, done: asyncio.Task[str]) -> None:
        self._coming.pop(name, None)
        if not done.cancelled() and done.exception() is None:
            with contextlib.suppress(OSError):
                self._keep(name, os.path.getsize(done.result()))

    async def _fetch(self, name: str, target: str, digest: str, token: str) -> str:
        return await self._persist(lambda: self._download(self.path(name), target, digest, token))

    def _download(self, path: str, target: str, digest: str, token: str) -> str:
        self._make_folder(path)
        fresh = f"{path}.{secrets.token_hex(4)}"
        response = self._request("GET", target, None, 0, token)
        seen = hashlib.sha256()
        try:
            with open(fresh, "wb") as file:
                while chunk := response.read(CHUNK_BYTES):
                    seen.update(chunk)
                    file.write(chunk)
            if digest and seen.hexdigest() != digest:
                raise OSError(f"what came for {target} is something else")
            os.chmod(fresh, self._modes[1])
            os.rename(fresh, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
        return path

    def _make_folder(self, path: str) -> None:
        """The folder of a file; its mode is set apart from what the umask leaves of it."""
        folder = os.path.dirname(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            os.chmod(folder, self._modes[0])

    def _keep(self, name: str, size: int) -> None:
        """Count a file in, and the oldest out."""
        self._held_bytes += size - self._held.pop(name, 0)
        self._held[name] = size
        while self._held_bytes > self._cap_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            self._held_bytes -= self._held.pop(oldest)
            with contextlib.suppress(OSError):
                os.unlink(self.path(oldest))

    # --- bringing -----------------------------------------------------------------------------------------------------

    async def upload(self, file: BinaryIO, digest: str, size: int, keep: bool) -> None:
        """Bring a file to the hub; afterwards its path is part of the cache, or gone. Raises Refused."""
        near, path = self._near, file.name
        if (found := os.fstat(file.fileno()).st_size) != size:
            raise Refused(f"the file that holds it has {found} bytes")
        if (
            near is not None
            and near.is_near()
            and os.fstat(file.fileno()).st_dev == os.stat(near.root).st_dev
        ):
            await self._persist(lambda: _hand_over(near, path, digest, size))
            return
        await self._persist(lambda: self._put(file, digest, size))
        if keep:
            target = self.path(digest)
            self._make_folder(target)
            os.fchmod(file.fileno(), self._modes[1])
            os.rename(path, target)
            self._keep(digest, size)
        else:
            os.unlink(path)

    def _put(self, file: BinaryIO, digest: str, size: int) -> str:
        file.seek(0)
        self._request("PUT", f"/api/v1/blobs/{digest}", file, size).read()
        return digest

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _persist(self, transfer: Callable[[], str]) -> str:
        """Try until the hub answers: it may be on its way back."""
        delay_s = RETRY_MIN_S
        for _ in range(TRIES):
            try:
                return await self._threads.do(transfer)
            except (*BROKEN, HubUnavailable, WrongCertificate):
                await asyncio.sleep(delay_s)
                delay_s = min(RETRY_MAX_S, 2 * delay_s)
        return await self._threads.do(transfer)

    def _request(
        self, method: str, target: str, body: BinaryIO | None, size: int, token: str = ""
    ) -> http.client.HTTPResponse:
        """Ask over this thread's connection, as the worker or by another token; one that went stale is opened anew."""
        access = self._access()
        if access is None:
            raise HubUnavailable("no hub has been reached yet")
        connection = self._connection(access)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            if body is None:
                response = connection.ask(method, target, None, headers)
            else:
                response = _send_file(connection, target, body, size)
        except (*BROKEN, Refused):
            connection.close()
            raise
        if response.status >= 500:
            response.read()
            raise OSError(f"{method} {target}: the hub answers {response.status}")
        if response.status >= 400:
            refusal = read_refusal(response.read())
            words = refusal.message if refusal else f"the hub answers {response.status} {response.reason}"
            raise Refused(words, response.status == 413)
        return response

    def _connection(self, access: HubAccess) -> HubConnection:
        known = getattr(self._connections, "known", None)
        if known is not None and known[0] == access and time.monotonic() - known[2] < 2:
            self._connections.known = (access, known[1], time.monotonic())
            return known[1]  # type: ignore[no-any-return]  # what was put there below
        if known is not None:
            known[1].close()
        made = HubConnection(access.way, access.token, TIMEOUT_S, access.trust, CHUNK_BYTES)
        self._connections.known = (access, made, time.monotonic())
        return made


def _hand_over(near: BlobFolder, path: str, digest: str, size: int) -> str:
    """Put a file among the hub's own; a hub without room may have some later."""
    try:
        near.check(size)
    except TooLarge as fault:
        raise Refused(fault.message, too_large=True) from None
    except NoSpace as fault:
        raise HubUnavailable(fault.message) from None
    if near.renew(digest):
        os.unlink(path)
    else:
        near.place(path, digest)
    return near.path(digest)


def _send_file(connection: HubConnection, target: str, body: BinaryIO, size: int) -> http.client.HTTPResponse:
    """PUT a file, and never more of it than was announced: its writer may go on, and what came behind would be taken
    for the next request. Without TLS it is not brought into this process.
    """
    connection.putrequest("PUT", target)
    announced = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    for name, value in connection.sign(announced).items():
        connection.putheader(name, value)
    connection.endheaders()
    if connection.sock.sendfile(body, 0, size) != size:
        raise Refused("the file that holds it was cut while it was sent")
    return connection.getresponse()
