"""Stored records read back. One that cannot be is set aside with a word, and stops nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from dray.core.model.records.records import Attempt, Job, Task
from dray.core.model.records.worker import Worker
from dray.hub.store.base import TokenRow

Record = TypeVar("Record")
JOB = msgspec.msgpack.Decoder(Job)
TASK = msgspec.msgpack.Decoder(Task)
ATTEMPT = msgspec.msgpack.Decoder(Attempt)
WORKER = msgspec.msgpack.Decoder(Worker)
TOKEN = msgspec.msgpack.Decoder(TokenRow)
IDS = msgspec.msgpack.Decoder(tuple[str, ...])
MOST_SET_ASIDE = 100


class Records:
    """Decodes rows; `set_aside` gets a word for each that is none."""

    def __init__(self, set_aside: list[str]) -> None:
        self._set_aside = set_aside

    def read(self, table: str, decoder: msgspec.msgpack.Decoder[Record], record: bytes) -> Record | None:
        """Decode one row."""
        try:
            return decoder.decode(record)
        except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, TypeError) as error:
            if len(self._set_aside) < MOST_SET_ASIDE:
                self._set_aside.append(
                    f"a row of {table} cannot be read ({type(error).__name__}): it was left out"
                )
            return None

    def read_all(
        self, table: str, decoder: msgspec.msgpack.Decoder[Record], records: Iterable[bytes]
    ) -> list[Record]:
        """Decode many."""
        found = (self.read(table, decoder, record) for record in records)
        return [record for record in found if record is not None]
