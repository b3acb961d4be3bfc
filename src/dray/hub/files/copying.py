"""Files that go with a store that is carried to another kind: from a home into the database, or back into a home.

In the transaction of the tables, and held against each other in the same way: a digest over all names and all that is
in them, at one end and at the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from dray.errors import StoreError
from dray.hub.files.frames import split_frames
from dray.hub.files.postgres_blobs import PART_BYTES
from dray.hub.store.base import Position
from dray.hub.store.copying import Copied, copy_store
from dray.hub.store.postgres.address import is_address
from dray.wire.local.blob_folder import is_digest

SECRET_FILE = "task_secret"
_CHUNK = 1 << 18
_PARTS = """SELECT digest, coalesce(no, 0), coalesce(data, ''::bytea), at_ms FROM dray.bodies
    LEFT JOIN dray.body_parts ON body = id WHERE digest IS NOT NULL ORDER BY digest, no"""
_OUTPUT = "SELECT job_id || '/' || name, start, data, at_ms FROM dray.output ORDER BY job_id, name, start"
_FETCH = 16
Tell = Callable[[Copied], None]


def copy_all(source: str, target: str, tell: Tell, with_files: bool = True) -> Position:
    """Copy a store and, unless they are to stay, the files beside it."""
    home = Path(target if is_address(source) else source).absolute().parent
    return copy_store(source, target, tell, HomeFiles(home) if with_files else None)


class _Tally:
    """A digest over files in the order of their names; each is named before what is in it."""

    def __init__(self, kind: str) -> None:
        self._kind, self._sum, self._count = kind, hashlib.sha256(), 0
        self._name, self._content = "", hashlib.sha256()

    def add(self, name: str, data: bytes) -> None:
        if name != self._name:
            self._close()
            self._name, self._content = name, hashlib.sha256()
        self._content.update(data)

    def _close(self) -> None:
        if self._name:
            self._sum.update(f"{self._name}\0{self._content.hexdigest()}\n".encode())
            self._count += 1

    def result(self) -> Copied:
        self._close()
        self._name = ""
        return Copied(self._kind, self._count, self._sum.hexdigest())


class HomeFiles:
    """The files of one home, to be carried away, or to be filled."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stage = home / f".copy-{secrets.token_hex(4)}"

    # --- away ---------------------------------------------------------------------------------------------------

    async def to_database(self, connection: Any, tell: Tell) -> None:
        """Write all files into the tables, then read them back and compare."""
        output, blobs = _Tally("output"), _Tally("values")
        for path in _output_files(self._home / "output"):
            await _carry_output(connection, path, output)
        for path in _blob_files(self._home / "blobs"):
            await _carry_blob(connection, path, blobs)
        with contextlib.suppress(FileNotFoundError):
            secret = (self._home / SECRET_FILE).read_bytes()
            await connection.execute("INSERT INTO dray.secrets VALUES ($1, $2)", SECRET_FILE, secret)
        again = _Tally("output"), _Tally("values")
        async for name, _, data, _ in _rows(connection, _OUTPUT):
            again[0].add(name, data)
        async for name, _, data, _ in _rows(connection, _PARTS):
            again[1].add(name, data)
        for there, here in zip((output, blobs), again, strict=True):
            _compare(there.result(), here.result(), tell)

    # --- back ---------------------------------------------------------------------------------------------------

    async def to_home(self, connection: Any, tell: Tell) -> None:
        """Write all that the tables have into files beside the place of the home's own, and compare."""
        output, blobs = _Tally("output"), _Tally("values")
        async for name, _, data, at_ms in _rows(connection, _OUTPUT):
            output.add(name, data)
            _append(self._stage / "output" / name, data, at_ms)
        async for digest, _, data, at_ms in _rows(connection, _PARTS):
            blobs.add(digest, data)
            _append(self._stage / "blobs" / digest[:2] / digest, data, at_ms)
        secret = await connection.fetchval("SELECT secret FROM dray.secrets WHERE name = $1", SECRET_FILE)
        if secret is not None:
            _append(self._stage / SECRET_FILE, secret, 0)
        again = _Tally("output"), _Tally("values")
        for path in _output_files(self._stage / "output"):
            for piece in _pieces(path):
                again[0].add(_name_of(path), piece)
        for path in _blob_files(self._stage / "blobs"):
            for piece in _pieces(path):
                again[1].add(path.name, piece)
        for there, here in zip((output, blobs), again, strict=True):
            _compare(there.result(), here.result(), tell)

    def finish(self) -> None:
        """Put what was written into its place; what was there under the same names is older."""
        for folder, _, names in os.walk(self._stage):
            place = self._home / Path(folder).relative_to(self._stage)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in names:
                os.replace(Path(folder) / name, place / name)
        shutil.rmtree(self._stage, ignore_errors=True)

    def undo(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._stage, ignore_errors=True)


def _compare(there: Copied, here: Copied, tell: Tell) -> None:
    if there != here:
        raise StoreError(
            f"the copy of {there.table} is not what was read ({here.rows} of {there.rows} files): nothing is kept"
        )
    tell(there)


async def _rows(connection: Any, query: str) -> AsyncIterator[Any]:
    cursor = await connection.cursor(query)
    while rows := await cursor.fetch(_FETCH):
        for row in rows:
            yield row


async def _carry_output(connection: Any, path: Path, tally: _Tally) -> None:
    """Rows of whole frames; a torn end is left out, as a hub would."""
    ends, at, at_ms, left = [0, 0], 0, round(os.stat(path).st_mtime * 1000), b""
    for piece in _pieces(path):
        left += piece
        whole = 0
        for frame, end in split_frames(left):
            ends[frame.stream], whole = frame.end, end
        if whole:
            values = (path.parent.name, path.name, at, *ends, at_ms, left[:whole])
            await connection.execute("INSERT INTO dray.output VALUES ($1, $2, $3, $4, $5, $6, $7)", *values)
            tally.add(_name_of(path), left[:whole])
            at, left = at + whole, left[whole:]


async def _carry_blob(connection: Any, path: Path, tally: _Tally) -> None:
    body, found, no = secrets.token_hex(16), hashlib.sha256(), 0
    for no, piece in enumerate(_pieces(path, PART_BYTES)):
        found.update(piece)
        tally.add(path.name, piece)
        await connection.execute("INSERT INTO dray.body_parts VALUES ($1, $2, $3)", body, no, piece)
    if found.hexdigest() != path.name:
        raise StoreError(f"{path} is not what its name says (a disk that failed?): remove it, and copy again")
    status = os.stat(path)
    values = (body, path.name, status.st_size, round(status.st_mtime * 1000))
    await connection.execute("INSERT INTO dray.bodies VALUES ($1, $2, $3, $4)", *values)


def _output_files(folder: Path) -> Iterator[Path]:
    """Files of output in the order of (job, name)."""
    for job in sorted(_listed(folder)):
        for name in sorted(_listed(folder / job)):
            if (path := folder / job / name).is_file():
                yield path


def _blob_files(folder: Path) -> Iterator[Path]:
    for start in sorted(_listed(folder)):
        if len(start) == 2:
            yield from (folder / start / name for name in sorted(_listed(folder / start)) if is_digest(name))


def _listed(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _pieces(path: Path, size: int = _CHUNK) -> Iterator[bytes]:
    """What is in a file; one piece of nothing where nothing is."""
    with path.open("rb") as file:
        piece = file.read(size)
        while True:
            yield piece
            if not (piece := file.read(size)):
                return


def _append(path: Path, data: bytes, at_ms: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if at_ms:
        os.utime(path, (at_ms / 1000, at_ms / 1000))
