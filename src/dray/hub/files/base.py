"""What the hub needs of the place where its files are: a folder of its own, one that several hubs share, or a database.

Two things have files. What an attempt printed is a tape: whole frames (`hub.files.frames`) one behind another, that
only ever grows; whoever writes to it says at which byte, so that the same thing said twice is there once. A large value
is a blob: named by its digest, whole or not there. All of it may block: it is asked on threads, but for a place that is
`near`, where a look takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

PORTION_BYTES = 1 << 20


class Found(NamedTuple):
    """How long a tape is, and up to where each stream is on it."""

    ends: tuple[int, int]
    size: int


NOTHING = Found((0, 0), 0)


class Tape(Protocol):
    """One attempt's. `shown` names it to people."""

    shown: str

    def is_new(self) -> bool:
        """Whether nothing can be on it, as far as a look says that takes no time."""

    def read(self, position: int, end: int) -> bytes:
        """Give whole frames from a position on, about a portion; nothing where there are none before `end`."""


class Addition(NamedTuple):
    """Frames to be put on a tape at its end, which is at `at`; `ends` is up to where each stream is then."""

    tape: Tape
    at: int
    frames: bytes
    ends: tuple[int, int]


class Tapes(Protocol):
    """All tapes. `near`: the loop may look by itself; if not, what comes meanwhile is written together."""

    near: bool

    def tape(self, job_id: str, name: str) -> Tape: ...
    def find(self, tapes: Sequence[Tape]) -> list[Found]:
        """See how far tapes are; what a crash left half written at an end is cut off."""

    def write(self, additions: Sequence[Addition]) -> Sequence[bool | None]:
        """Put frames on tapes, at most one addition for each. False: the disk did not take it, and that piece is lost.
        None: another hub has put something there since, and nothing was written.

        Raises where it is not known to be there, or where another hub leads: then it is sent again.
        """

    def drop(self, job_ids: Sequence[str]) -> None:
        """Remove what these jobs printed."""

    def trim(self, most_bytes: int, live: frozenset[str]) -> None:
        """Remove the oldest output of jobs that are not live until the rest fits."""

    def stop_waiting(self) -> None:
        """The hub ends: what the place does not take now is not waited for."""


class Draft(Protocol):
    """A blob on its way in."""

    def write(self, piece: bytes) -> None: ...
    def discard(self) -> None:
        """Leave nothing behind; also from another thread, while a write is under way."""


class Reading(Protocol):
    """A blob that is read from its start."""

    def read(self, most_bytes: int, /) -> bytes: ...
    def close(self) -> None: ...


class BlobFiles(Protocol):
    """All blobs. `at_s` and `before_s` are times by the clock of the place, which is this machine's or near it."""

    near: bool

    def size_of(self, digest: str) -> int | None: ...
    def renew(self, digest: str) -> int | None:
        """Let a blob count as put there now; gives its size, None where it is not there."""

    def begin(self) -> Draft: ...
    def place(self, draft: Draft, digest: str) -> None:
        """Give a draft that is what its digest says its name, for good."""

    def open(self, digest: str) -> Reading:
        """Read a blob; raises FileNotFoundError."""

    def remove(self, digest: str, before_s: float) -> bool:
        """Remove a blob unless it was put there, or renewed, since; False if so."""

    def remove_drafts(self, before_s: float) -> None: ...
    def sizes(self, first: int) -> dict[str, int]:
        """Give the blobs whose digest begins with this byte."""


class Files(Protocol):
    """One such place, open."""

    @property
    def tapes(self) -> Tapes: ...
    @property
    def blobs(self) -> BlobFiles: ...
    def keep_secret(self, name: str, drawn: bytes) -> bytes:
        """Give the secret of that name; where there is none, this one is it from now on, for all hubs."""

    def free_bytes(self) -> int | None:
        """The room that is left; None where nobody can say."""

    def describe(self) -> tuple[bool, str]:
        """Whether it can be written to, and where it is: for people. Takes no time."""
