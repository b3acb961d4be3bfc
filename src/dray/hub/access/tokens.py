"""Tokens: who may ask, and for what.

Owns the table of tokens in memory and the file with the first one; knows nothing about HTTP beyond the text of an
Authorization header. A token is `dray_<id>_<secret>`: the id finds its row, the hash of the whole text proves it.
Nothing is remembered of an answer, because one hash and one look-up cost two microseconds: revoking and expiring
therefore work at once. What is open longer than an answer takes holds a lease, and ends with the token too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from dray.core.lifecycle.state.effects import Note
from dray.core.model.ids import ID_RULE, is_id
from dray.core.model.specs.values import suggest
from dray.errors import Conflict, Forbidden, InvalidInput, NotFound, Problem, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.task_accounts import TaskAccounts
from dray.hub.access.task_tokens import TaskTokens, is_task_id, is_task_token, token_ids
from dray.hub.access.token_leases import End, Leases
from dray.hub.store.base import AuditRecord, TokenRow

SCOPES = ("admin", "submit", "read", "worker", "join")
# A join token is pasted into terminals: its text says what it is, and it does not live long.
JOIN_PREFIX = "drayjoin"
JOIN_S = 86400.0
TOKEN_FILE = "token"
# Of a person, who may sit before a browser.
PERSONAL = ("admin", "submit", "read")
SESSION_S = 12 * 3600.0
MOST_SESSIONS = 32
MAX_EXPIRES_S = 100 * 365 * 86400
_NO_HASH = bytes(32)
_HINT = "send the header `Authorization: Bearer <token>`; the first token is in the file `token` of the hub's home"

SaveToken = Callable[[TokenRow, AuditRecord], Awaitable[None]]


class TokenStore(Protocol):
    """What the first start needs of a store."""

    def tokens(self) -> list[TokenRow]: ...
    def save_token(self, token: TokenRow) -> None: ...


class SignedTokens(Protocol):
    """A kind of tokens that are not stored."""

    def knows(self, text: str) -> bool: ...
    def authenticate(self, text: str) -> Caller: ...


class FirstToken(NamedTuple):
    """Where the token of the hub's owner lies, and whether this start made it."""

    path: Path
    created: bool


class _Entry:
    __slots__ = ("caller", "last_used_ms", "row")

    def __init__(self, row: TokenRow) -> None:
        self.row = row
        self.caller = Caller(row.id, row.user, row.scopes)
        self.last_used_ms = 0


class Tokens:
    """The tokens of one hub. `save` makes a row and its audit record durable before anything is answered."""

    def __init__(
        self,
        rows: Iterable[TokenRow],
        clock_ms: Callable[[], int],
        save: SaveToken,
        tasks: TaskTokens | None = None,
    ) -> None:
        self._clock_ms = clock_ms
        self.accounts = TaskAccounts()
        self._save, self._tasks = save, tasks
        # Of other hubs, where there are any.
        self.signed: SignedTokens | None = None
        self._entries = {row.id: _Entry(row) for row in rows}
        # Those of whom work is run, apart from the many of workers.
        self._submitters = [entry for entry in self._entries.values() if _may_run(entry.row)]
        self._leases = Leases(self.fault_of, self._left_s)
        self._made_for = {
            entry.row.worker: entry.row.id
            for entry in sorted(self._entries.values(), key=lambda entry: not entry.row.revoked)
            if entry.row.worker
        }

    def authenticate(self, header: str | None) -> Caller:
        """Tell whose token an Authorization header carries."""
        if not header:
            raise Unauthenticated(f"this call needs a token: {_HINT}")
        scheme, _, presented = header.partition(" ")
        presented = presented.strip()
        if scheme.lower() != "bearer" or not presented:
            raise Unauthenticated(f"the Authorization header is not of the form `Bearer <token>`: {_HINT}")
        if self._tasks is not None and is_task_token(presented):
            return self._tasks.authenticate(presented)
        if self.signed is not None and self.signed.knows(presented):
            return self.signed.authenticate(presented)
        entry = self._entries.get(_id_of(presented))
        kept = entry.row.hash if entry is not None else _NO_HASH
        # An unknown id costs the same as a wrong secret, so the time of an answer names no ids.
        if not hmac.compare_digest(kept, hash_token(presented)) or entry is None:
            raise Unauthenticated(
                "the hub does not know this token: ask an admin for a new one (`dray token create`)"
            )
        now_ms = self._clock_ms()
        if fault := self._fault_of(entry.row, now_ms):
            raise Unauthenticated(f"{fault}: ask an admin for a new one")
        entry.last_used_ms = now_ms
        return entry.caller

    def recall(self, token_id: str) -> Caller:
        """The caller behind a stored token that was good before; raises where it is not, or was never stored."""
        self.check_live(token_id)
        if (entry := self._entries.get(token_id)) is None:
            raise Unauthenticated(f"{token_id} is no token that is stored")
        return entry.caller

    def clock_ms(self) -> int:
        """Wall time, which expiry is measured by."""
        return self._clock_ms()

    def is_single(self, token_id: str) -> bool:
        """Whether a token speaks for one worker only."""
        entry = self._entries.get(token_id)
        return entry is not None and entry.row.single

    def worker_of(self, token_id: str) -> str:
        """The worker that a token was made for; empty where it was made for whoever comes first."""
        entry = self._entries.get(token_id)
        return entry.row.worker if entry is not None else ""

    def is_shared(self, token_id: str) -> bool:
        """Whether a worker's token may speak for several: one that was made before tokens were bound to workers."""
        entry = self._entries.get(token_id)
        return entry is not None and not entry.row.single and "admin" not in entry.row.scopes

    def hold(self, token_id: str, end: End) -> AbstractContextManager[None]:
        """Serve somebody for longer than an answer takes: `end` is called with the reason once the token has ended."""
        return self._leases.hold(token_id, end)

    def check_live(self, token_id: str) -> None:
        """Refuse to go on for a token that was good when a request began."""
        if fault := self.fault_of(token_id):
            raise Unauthenticated(f"{fault}: the request was broken off")

    def fault_of(self, token_id: str) -> str:
        """Say why a token is no longer good; empty while it is."""
        if self._tasks is not None and is_task_id(token_id):
            return self._tasks.fault_of(token_id)
        entry = self._entries.get(token_id)
        return (
            self._fault_of(entry.row, self._clock_ms())
            if entry is not None
            else f"there is no token {token_id}"
        )

    def _fault_of(self, row: TokenRow, now_ms: int) -> str:
        fault = _fault_of(row, now_ms)
        if row.parent and not fault:
            parent = self._entries.get(row.parent)
            gone = f"token {row.parent}, which signed in, is gone"
            fault = _fault_of(parent.row, now_ms) if parent is not None else gone
        return fault

    def hear(self, note: Note) -> None:
        """Hear of a committed note: what a task's token holds open ends with its job."""
        if note.type == "job_ended":
            for token_id in token_ids(note.job_id):
                self._leases.look(token_id)

    def _left_s(self, token_id: str) -> float | None:
        entry = self._entries.get(token_id)
        if entry is None or not entry.row.expires_at_ms:
            return None
        return (entry.row.expires_at_ms - self._clock_ms()) / 1000

    def documents(self) -> dict[str, Any]:
        """List every token, newest first, without anything that could be used as one; of sessions those that last."""
        now_ms = self._clock_ms()
        listed = [e for e in self._entries.values() if not e.row.parent or not self._fault_of(e.row, now_ms)]
        ordered = sorted(listed, key=lambda entry: (-entry.row.created_at_ms, entry.row.id))
        return {"tokens": [_document(entry) for entry in ordered]}

    def users(self) -> dict[str, bool]:
        """Everybody who may have work run by now, and whether they are admins."""
        now_ms = self._clock_ms()
        found: dict[str, bool] = {}
        for row in (entry.row for entry in self._submitters):
            if _is_live(row, now_ms):
                found[row.user] = found.get(row.user, False) or "admin" in row.scopes
        return found

    def tell_shared(self) -> list[str]:
        """Where tasks of several of these users share an account, in words."""
        return self.accounts.tell_shared(self.users())

    async def create(
        self,
        by: Caller,
        user: str,
        scopes: Sequence[str],
        expires_s: float | None = None,
        worker: str = "",
        shared_account: bool = False,
    ) -> dict[str, Any]:
        """Make a token; its text is in this answer and nowhere else. One for a `worker` takes that id for itself."""
        now_ms = self._clock_ms()
        _check_request(user, scopes, expires_s)
        if expires_s is None and "join" in scopes:
            expires_s = JOIN_S
        users = self.users()
        if _is_submitter(scopes) and user not in users:
            self.accounts.check({**users, user: "admin" in scopes}, shared_account)
        expires_at_ms = now_ms + round(expires_s * 1000) if expires_s else 0
        text, row = make_token(user, scopes, now_ms, expires_at_ms, worker)
        detail = f"user {user}, scopes {' '.join(row.scopes)}" + (f", worker {worker}" if worker else "")
        record = AuditRecord(now_ms, by.user, by.token_id, "token.create", row.id, detail)
        before = self._made_for.get(worker, "")
        if worker:
            # Before anything is awaited: of two who ask for one id at the same time only one gets it.
            if self.made_for(worker):
                raise Conflict(f"worker id {worker} belongs to token {before}: revoke it first")
            self._made_for[worker] = row.id
        try:
            await self._save(row, record)
        except BaseException:
            if worker:
                self._made_for[worker] = before
            raise
        self._entries[row.id] = _Entry(row)
        self._submitters += [self._entries[row.id]] if _may_run(row) else []
        return {**_document(self._entries[row.id]), "token": text}

    async def open_session(self, caller: Caller) -> tuple[str, TokenRow]:
        """Make a token of its own for a browser, which ends with the one that signs in; one caller at a time."""
        entry, now_ms = self._entries.get(caller.token_id), self._clock_ms()
        scopes = tuple(scope for scope in caller.scopes if scope in PERSONAL)
        if entry is None or entry.row.parent or not scopes:
            what = "is itself a session" if entry is not None and entry.row.parent else "is not a person's"
            raise Forbidden(
                f"token {caller.token_id} {what}: sign in with one that has the scope {', '.join(PERSONAL)}"
            )
        ends = (now_ms + round(1000 * SESSION_S), entry.row.expires_at_ms)
        text, row = make_token(caller.user, scopes, now_ms, min(filter(None, ends)), parent=entry.row.id)
        # A session takes the row of one that has ended, so that signing in again and again fills no store.
        others = [other.row for other in self._entries.values() if other.row.parent == entry.row.id]
        ended = next((other for other in others if self._fault_of(other, now_ms)), None)
        if ended is None and len(others) >= MOST_SESSIONS:
            ended = min(others, key=lambda other: other.created_at_ms)
            await self.revoke(caller, ended.id)
        if ended is not None:
            text = text.replace(row.id, ended.id, 1)
            row = msgspec.structs.replace(row, id=ended.id, hash=hash_token(text))
        detail = f"user {row.user}, scopes {' '.join(row.scopes)}"
        await self._save(
            row, AuditRecord(now_ms, caller.user, caller.token_id, "session.open", row.id, detail)
        )
        self._entries[row.id] = _Entry(row)
        return text, row

    def parent_of(self, token_id: str) -> str:
        """The token that signed in, of a browser's session; empty for any other."""
        entry = self._entries.get(token_id)
        return entry.row.parent if entry is not None else ""

    def expires_at(self, token_id: str) -> str | None:
        """When a stored token ends by itself."""
        entry = self._entries.get(token_id)
        return stamp(entry.row.expires_at_ms) if entry is not None else None

    def made_for(self, worker_id: str) -> str:
        """The token that was made for a worker and is good, or about to be made; empty where there is none."""
        token_id = self._made_for.get(worker_id, "")
        return token_id if token_id not in self._entries or not self.fault_of(token_id) else ""

    async def revoke(self, by: Caller, token_id: str) -> dict[str, Any]:
        """End a token for good. The last one that can make others stays, or nobody could get in any more."""
        entry = self._entries.get(token_id)
        if entry is None:
            raise NotFound(f"no token has the id {token_id!r}: `dray token ls` names them")
        now_ms = self._clock_ms()
        if not entry.row.revoked:
            self._refuse_lockout(entry.row, now_ms)
            row = msgspec.structs.replace(entry.row, revoked=True)
            detail = f"user {row.user}"
            await self._save(row, AuditRecord(now_ms, by.user, by.token_id, "token.revoke", row.id, detail))
            entry.row = row
            for other in self._entries.values():
                if row.id in (other.row.id, other.row.parent):
                    self._leases.look(other.row.id)
        return _document(entry)

    def _refuse_lockout(self, row: TokenRow, now_ms: int) -> None:
        others = (entry.row for entry in self._entries.values() if entry.row.id != row.id)
        if _is_admin(row, now_ms) and not any(_is_admin(other, now_ms) for other in others):
            raise Conflict(
                f"{row.id} is the last admin token: make another first (`dray token create --scope admin`)"
            )


def hash_token(text: str) -> bytes:
    """Spell a token as it is stored. Its secret is 256 random bits, so a plain hash cannot be guessed backwards."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def make_token(
    user: str,
    scopes: Sequence[str],
    now_ms: int,
    expires_at_ms: int = 0,
    worker: str = "",
    parent: str = "",
) -> tuple[str, TokenRow]:
    """Draw a new token: its text, and the row that may be stored."""
    token_id = secrets.token_hex(4)
    text = f"{JOIN_PREFIX if 'join' in scopes else 'dray'}_{token_id}_{secrets.token_urlsafe(32)}"
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    row = TokenRow(
        id=token_id,
        hash=hash_token(text),
        user=user,
        scopes=ordered,
        created_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
        single="worker" in ordered and "admin" not in ordered,
        worker=worker,
        parent=parent,
    )
    return text, row


def ensure_first_token(
    home: Path, user: str, store: TokenStore, now_ms: int, is_new_home: bool = False
) -> FirstToken:
    """Leave an admin token in HOME/token where the store knows none that works.

    A home that is new to a store that others have gets one as well: theirs may be lost with their disks. Whoever runs a
    hub there may write to that store anyway.
    """
    path = home / TOKEN_FILE
    rows = {row.id: row for row in store.tokens()}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = path.read_text("utf-8").strip()
        row = rows.get(_id_of(text))
        if row is not None and hmac.compare_digest(row.hash, hash_token(text)) and _is_admin(row, now_ms):
            path.chmod(0o600)
            return FirstToken(path, created=False)
    if any(_is_admin(row, now_ms) for row in rows.values()) and not (is_new_home and not path.exists()):
        return FirstToken(path, created=False)
    text, row = make_token(user, ("admin",), now_ms)
    # The file goes first: a crash in between leaves a file that opens nothing, and the next start comes here again. The
    # other order could leave a store with an admin token that nobody knows.
    write_private(path, f"{text}\n".encode())
    store.save_token(row)
    return FirstToken(path, created=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def rewrite_private(path: Path, content: bytes) -> None:
    """Write a file that is there already; on a full disk into the room that it has, padded with spaces."""
    try:
        write_private(path, content)
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        with path.open("r+b") as file:
            file.write(content.ljust(path.stat().st_size))


def stamp(at_ms: int) -> str | None:
    """Spell a time for people: RFC 3339, UTC, milliseconds; 0 is no time."""
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _id_of(text: str) -> str:
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] in ("dray", JOIN_PREFIX) else ""


def _is_submitter(scopes: Sequence[str]) -> bool:
    return "submit" in scopes or "admin" in scopes


def _may_run(row: TokenRow) -> bool:
    """Whether work is run for whom it speaks; a session speaks for nobody whom its parent does not."""
    return _is_submitter(row.scopes) and not row.parent


def _is_live(row: TokenRow, now_ms: int) -> bool:
    return not row.revoked and not 0 < row.expires_at_ms <= now_ms


def _is_admin(row: TokenRow, now_ms: int) -> bool:
    # Who has only a session has no token by which to sign in again.
    return "admin" in row.scopes and not row.parent and _is_live(row, now_ms)


def _fault_of(row: TokenRow, now_ms: int) -> str:
    if row.revoked:
        return f"token {row.id} was revoked"
    return "" if _is_live(row, now_ms) else f"token {row.id} expired at {stamp(row.expires_at_ms)}"


def _check_request(user: str, scopes: Sequence[str], expires_s: float | None) -> None:
    problems = [
        Problem("scopes", f"{scope!r} is no scope{suggest(scope, SCOPES)}; they are {', '.join(SCOPES)}")
        for scope in scopes
        if scope not in SCOPES
    ]
    if not scopes:
        problems.append(Problem("scopes", f"names none: give at least one of {', '.join(SCOPES)}"))
    if "join" in scopes and len(set(scopes)) > 1:
        problems.append(Problem("scopes", "join goes with no other: its token is handed around"))
    if not is_id(user):
        problems.append(Problem("user", f"must be {ID_RULE}"))
    if expires_s is not None and not 0 < expires_s <= MAX_EXPIRES_S:
        problems.append(
            Problem("expires_s", f"must be above 0 and at most {MAX_EXPIRES_S}, got {expires_s:g}")
        )
    if problems:
        raise InvalidInput(f"no token was made: {problems[0].where}: {problems[0].what}", problems)


def _document(entry: _Entry) -> dict[str, Any]:
    row = entry.row
    return {
        "id": row.id,
        "user": row.user,
        "scopes": list(row.scopes),
        "created_at": stamp(row.created_at_ms),
        "expires_at": stamp(row.expires_at_ms),
        "last_used_at": stamp(entry.last_used_ms),
        "revoked": row.revoked,
        "worker": row.worker or None,
        "parent": row.parent or None,
    }
