"""What the shell must do once the turn is committed: messages to workers, notes for people, alarms.

Effects name ids, never records: by the time they run the state has not moved, but a replay throws them away unread.
They are structs that the garbage collector does not follow: several are made for every task.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dray.core.lifecycle.state.experience import Needs

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Assign(msgspec.Struct, frozen=True, gc=False):
    """Send (or send again) an attempt to its worker; of a lane all calls that are outstanding in it."""

    worker: str
    uid: str


class FeedCalls(msgspec.Struct, frozen=True, gc=False):
    """Send these calls into a lane of a worker."""

    worker: str
    uid: str
    indices: tuple[int, ...]


class CallsDone(msgspec.Struct, frozen=True, gc=False):
    """These calls ended otherwise than by a result of their worker: cancelled, lost too often. Each has a record."""

    job_id: str
    indices: tuple[int, ...]
    state: str
    exit_class: str
    error: str


class Resume(msgspec.Struct, frozen=True, gc=False):
    """Tell an attempt that had yielded that it has its slot and cores back."""

    worker: str
    uid: str


class Go(msgspec.Struct, frozen=True, gc=False):
    """Tell a prepared member of a gang that all of them are, and where they meet."""

    worker: str
    uid: str


class NoWork(msgspec.Struct, frozen=True, gc=False):
    """Answer a poll that got nothing."""

    worker: str


class GetReady(msgspec.Struct, frozen=True, gc=False):
    """Tell a worker what a task may soon need there; `over`: that it need not get it any more."""

    worker: str
    job_id: str
    user: str
    needs: Needs
    over: bool = False


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Ask a worker to stop an attempt; `uid` may be one that the hub no longer holds."""

    worker: str
    task_id: str
    uid: str
    reason: str
    grace_s: float


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Answer a message of a worker. `results` maps attempt uids to recorded, duplicate or superseded."""

    worker: str
    re: str
    results: Mapping[str, str] = _NOTHING
    keep: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    beat: int = 0


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Answer a message that makes no sense here; the connection lives on."""

    worker: str
    error: str


class LookUp(msgspec.Struct, frozen=True, gc=False):
    """A result for an attempt that memory does not hold: the store knows whether it is a duplicate."""

    worker: str
    job_id: str
    task_index: int
    uid: str


class StopIfOver(msgspec.Struct, frozen=True, gc=False):
    """A worker says that it runs an attempt that memory does not hold: it is asked to stop what the store knows to be
    over, and nothing that the store does not know.
    """

    worker: str
    uid: str


class CloseSession(msgspec.Struct, frozen=True, gc=False):
    """Close a socket with a code and a reason."""

    worker: str
    session: int
    code: int
    reason: str


class SolveWanted(msgspec.Struct, frozen=True, gc=False):
    """Have a solver say where the tasks of this batch are best placed."""

    number: int


class Note(msgspec.Struct, frozen=True, gc=False):
    """One line of the public event feed, stored beside the facts that caused it."""

    type: str
    job_id: str = ""
    task_id: str = ""
    worker: str = ""
    data: Mapping[str, Any] = _NOTHING


class Alarm(msgspec.Struct, frozen=True, gc=False):
    """Something a person must hear of now."""

    text: str


Effect = (
    Assign
    | FeedCalls
    | CallsDone
    | Resume
    | Go
    | GetReady
    | NoWork
    | Cancel
    | Ack
    | Refuse
    | LookUp
    | StopIfOver
    | CloseSession
    | SolveWanted
    | Note
    | Alarm
)
