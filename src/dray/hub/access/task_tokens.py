"""Tokens of running work: user code inside a call may submit and read on behalf of its job's user, while the job lives;
a task that uses services may reach those, and nothing else.

Signed, not stored: a map would otherwise write a token per job, and forget to revoke some. The secret is one of the
hub's files (`hub.files`). A token names its job by id and number, so that one of a forgotten job opens nothing when its
id is used anew.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from dray.core.model.records.records import Job
from dray.errors import Unauthenticated
from dray.hub.access.caller import USE_ONLY, Caller

PREFIX = "dray_task_"
SECRET_FILE = "task_secret"
SECRET_BYTES = 32
SCOPES = ("submit", "read")
_ID = "task:"
USE_PREFIX = "dray_use_"
# What no operation takes but those that reach a service.
(USE,) = USE_ONLY
_USE_ID = "use:"


class TaskTokens:
    """Makes and reads the tokens of one hub. `find` gives a job that memory holds."""

    def __init__(self, secret: bytes, find: Callable[[str], Job | None]) -> None:
        self._secret, self._find = secret, find

    def make(self, job: Job) -> str:
        """The token of a job."""
        named = f"{job.seq}.{job.id}".encode()
        return f"{PREFIX}{_spell(named)}.{_spell(self._sign(named))}"

    def make_use(self, job: Job) -> str:
        """The token by which tasks of a job reach the services that it uses."""
        named = f"{job.seq}.{job.id}".encode()
        return f"{USE_PREFIX}{_spell(named)}.{_spell(self._sign(named, USE))}"

    def authenticate(self, text: str) -> Caller:
        """Tell on whose behalf a token speaks; one whose job has ended speaks for nobody."""
        narrow = text.startswith(USE_PREFIX)
        body, _, signature = text.removeprefix(USE_PREFIX if narrow else PREFIX).partition(".")
        named, signed = _read(body), _read(signature)
        if not hmac.compare_digest(self._sign(named, USE if narrow else ""), signed):
            raise Unauthenticated(
                "the hub did not make this token of a task: use the one in DRAY_TOKEN as it is"
            )
        seq, _, job_id = named.decode().partition(".")
        job = self._find(job_id)
        if job is None or str(job.seq) != seq or job.state.final:
            raise Unauthenticated(
                f"this token was for job {job_id}, which has ended: only running work may use it"
            )
        if narrow:
            return Caller(_USE_ID + job.id, job.user, USE_ONLY)
        return Caller(task_token_id(job.id), job.user, SCOPES)

    def fault_of(self, token_id: str) -> str:
        """Say that the job behind a caller which was let in has ended; empty while it lives."""
        job_id = token_id.partition(":")[2]
        job = self._find(job_id)
        return (
            "" if job is not None and not job.state.final else f"job {job_id}, whose token this is, has ended"
        )

    def _sign(self, named: bytes, what: str = "") -> bytes:
        """What a token is for is part of what is signed: the signature of one is none of the other."""
        # No id holds a blank, so that nothing that is signed for one purpose can be read as signed for another.
        return hmac.new(self._secret, f"{what} ".encode() + named if what else named, hashlib.sha256).digest()


def is_task_token(text: str) -> bool:
    """Tell a token of a task from one that is stored."""
    return text.startswith((PREFIX, USE_PREFIX))


def task_token_id(job_id: str) -> str:
    """The id under which the caller behind a job's token goes."""
    return _ID + job_id


def token_ids(job_id: str) -> tuple[str, str]:
    """The ids of all callers that end with a job."""
    return _ID + job_id, _USE_ID + job_id


def is_task_id(token_id: str) -> bool:
    """Tell the id of such a caller from that of a stored token."""
    return token_id.startswith((_ID, _USE_ID))


def used_by(token_id: str) -> str:
    """The job whose services a caller may reach, and no others; empty where he is none that is bound so."""
    return token_id.removeprefix(_USE_ID) if token_id.startswith(_USE_ID) else ""


def ensure_secret(home: Path, keep: Callable[[str, bytes], bytes]) -> bytes:
    """Give the secret that is kept; where there is none, that of the home is it from now on, or one that is drawn."""
    offered = secrets.token_bytes(SECRET_BYTES)
    with contextlib.suppress(OSError):
        found = (home / SECRET_FILE).read_bytes()
        if len(found) == SECRET_BYTES:
            offered = found
    return keep(SECRET_FILE, offered)


def _spell(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
    except ValueError:
        return b""
