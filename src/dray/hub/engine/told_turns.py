"""What others were told of turns, and what follows when somebody knows of more than this hub's store began with.

A client is given a word with its answers: which run of the hub told it, the epoch and the last committed turn, signed
with a secret of the hub's home. It means nothing to the client, which gives the last one back when it asks again: so a
store that was put back together with all that lies beside it is found out, and nobody can claim a turn that was never
told. Workers give plain numbers instead (`inbound`), which their owners answer for.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
import struct
from collections.abc import Callable

from dray.hub.engine.fault_reports import Reports
from dray.hub.store.base import Lost, Position
from dray.wire.reach.dialling import SEQ_HEADER, TURN_HEADER

HEADER = TURN_HEADER.lower().encode()
SEQ = SEQ_HEADER.lower().encode()
_TOLD = struct.Struct("<8sQQ")
_SIGNED_BYTES = 24
_CONTEXT = b"turns that clients were told"
_log = logging.getLogger("dray.hub.workers.sessions")
# Hears of a peer that knows more than this hub's store: who, what it was told, what was found at the start.
Behind = Callable[[str, Position, Position], None]


class TurnWords:
    """Writes and reads the words of one run. `began` is what it began with, `now` how far it is."""

    def __init__(
        self,
        secret: bytes,
        began: Position,
        now: Callable[[], Position],
        behind: Behind,
        raise_epoch: Callable[[int], None],
    ) -> None:
        self._key = hmac.digest(secret, _CONTEXT, "sha256")
        # One epoch may be lived through twice, before a restore and after it: runs are told apart by their own names.
        self._run = secrets.token_bytes(8)
        self._began, self._now, self._behind, self._raise_epoch = began, now, behind, raise_epoch
        self._at = Position(0, 0)
        self._word = b""
        self._noticed = False

    def write(self) -> bytes:
        """Give the word for what may be told now; made once per turn."""
        at = self._now()
        if at != self._at or not self._word:
            told = _TOLD.pack(self._run, *at)
            self._at, self._word = at, base64.urlsafe_b64encode(told + self._sign(told))
        return self._word

    @property
    def seq(self) -> int:
        """The last turn that may be told."""
        return self._now().seq

    def hear(self, word: bytes | None, who: str) -> None:
        """Take a word back. One that this hub's home did not sign says nothing; one that is true is told once a run."""
        if not word or word == self._word or self._noticed:
            return
        known = self._read(word)
        if known is None or (known.epoch < self._began.epoch and known.seq <= self._began.seq):
            return
        self._noticed = True
        if known.epoch >= self._now().epoch:
            self._raise_epoch(known.epoch + 1)
        self._behind(who, known, self._began)

    def _read(self, word: bytes) -> Position | None:
        """Give what an earlier run told; None for what this one told, and for what nobody did."""
        try:
            raw = base64.urlsafe_b64decode(word)
        except (binascii.Error, ValueError):
            return None
        told, signed = raw[: _TOLD.size], raw[_TOLD.size :]
        if len(told) < _TOLD.size or not hmac.compare_digest(self._sign(told), signed):
            return None
        run, epoch, seq = _TOLD.unpack(told)
        return None if run == self._run else Position(epoch, seq)

    def _sign(self, told: bytes) -> bytes:
        return hmac.digest(self._key, told, "sha256")[:_SIGNED_BYTES]


def tell_lost(lost: Lost) -> str:
    """Say that committed turns are missing, and what follows from it."""
    return (
        f"the store has lost turns that were committed: its last is {lost.found.seq} (epoch {lost.found.epoch}), "
        f"and {lost.known.seq} (epoch {lost.known.epoch}) is known to have been answered. Jobs and results of those "
        "turns are gone; work of theirs that still runs is put in quarantine, never killed. The log as it was found is "
        "kept beside the store (hub.sqlite-wal.lost-*). After a restore on purpose this is what came after the backup"
    )


def report_behind(reports: Reports, who: str, known: Position, found: Position) -> None:
    """One report, however many say so: one that lies must not bury the others."""
    told = f"turn {known.seq}" if known.seq > found.seq else "something"
    _log.warning("%s was told %s under epoch %d, not in this store", who, told, known.epoch)
    reports.file(
        "lost turns",
        f"workers or clients were told more than this hub began with (turn {found.seq}, epoch {found.epoch}; the log "
        "names them): its store is a backup or has lost turns. What workers run and the store does not know is put in "
        "quarantine, never killed",
    )
