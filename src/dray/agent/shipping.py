"""Task output on its way to the hub: read from the supervisor's files, sent within a window, advanced by acks.

A full window stops the shipping, never the task. After a restart of the agent the hub's first ack says from where
to go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dray.agent.supervisor.output import STREAMS, read_output
from dray.agent.supervisor.server import remove_output

CHUNK_BYTES = 64 << 10


class Stream:
    """Where one stream of one attempt stands: sent up to, acked up to."""

    __slots__ = ("acked", "sent")

    def __init__(self) -> None:
        self.sent = self.acked = 0


class Parcel:
    """The output of one attempt, or of one call: `attempt` is then its lane, and the files go when they are shipped."""

    def __init__(self, uid: str, task_id: str, folder: str, attempt: str) -> None:
        self.uid, self.task_id, self.folder, self.attempt = uid, task_id, folder, attempt
        self.streams = {stream: Stream() for stream in STREAMS}
        self.ended = False


class Shipper:
    """Sends what was printed; `push` queues a message for the hub."""

    def __init__(
        self, attempts: Path, window_bytes: int, push: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._attempts, self._window, self._push = str(attempts), window_bytes, push
        self.parcels: dict[str, Parcel] = {}

    def follow(self, uid: str, task_id: str, ended: bool) -> None:
        """Ship an attempt's output from now on; a first look follows at once."""
        parcel = self.parcels.get(uid)
        if parcel is None:
            parcel = self.parcels[uid] = Parcel(uid, task_id, f"{self._attempts}/{uid}", uid)
        parcel.ended = parcel.ended or ended
        self.ship(parcel)

    def follow_call(self, lane: str, index: int, task_id: str, folder: str, ended: bool) -> None:
        """Ship what a call prints; `folder` is another one when it has ended."""
        uid = f"{lane}.{index}"
        parcel = self.parcels.get(uid)
        if parcel is None:
            parcel = self.parcels[uid] = Parcel(uid, task_id, folder, lane)
        parcel.folder, parcel.ended = folder, parcel.ended or ended
        self.ship(parcel)

    def look(self) -> bool:
        """Ship what has come since the last look; True when anything did."""
        moved = [self.ship(parcel) for parcel in list(self.parcels.values())]
        return any(moved)

    def ship(self, parcel: Parcel) -> bool:
        """Send as much as the window allows; an attempt that ended and was received whole is let go."""
        moved = False
        if os.path.isdir(parcel.folder):
            for name, stream in parcel.streams.items():
                while stream.sent - stream.acked < self._window and self._send_chunk(parcel, name, stream):
                    moved = True
        whole = all(stream.sent == stream.acked for stream in parcel.streams.values())
        if parcel.ended and whole and not moved:
            self._let_go(parcel)
        return moved

    def _let_go(self, parcel: Parcel) -> None:
        del self.parcels[parcel.uid]
        if parcel.attempt != parcel.uid:
            remove_output(parcel.folder)

    def _send_chunk(self, parcel: Parcel, name: str, stream: Stream) -> bool:
        data, offset, _ = read_output(parcel.folder, name, stream.sent, CHUNK_BYTES)
        if not data:
            return False
        payload = {
            "task_id": parcel.task_id,
            "attempt": parcel.attempt,
            "stream": name,
            "offset": offset,
            "data": data,
        }
        self._push("job_log", payload)
        stream.sent = offset + len(data)
        return True

    def received(self, offsets: dict[str, dict[str, int]]) -> None:
        """The hub says up to where it has each stream."""
        for uid, ends in offsets.items():
            parcel = self.parcels.get(uid)
            if parcel is None:
                continue
            for name, end in ends.items():
                if name in parcel.streams:
                    stream = parcel.streams[name]
                    stream.acked = max(stream.acked, end)
                    stream.sent = max(stream.sent, end)
            self.ship(parcel)

    def retain(self, uids: set[str]) -> None:
        """Let all other attempts go: the hub does not know them. Calls are known by their lanes."""
        for uid, parcel in list(self.parcels.items()):
            if uid not in uids and parcel.attempt == uid:
                del self.parcels[uid]

    def rewind(self) -> None:
        """A new session: what was not acked is sent again."""
        for parcel in self.parcels.values():
            for stream in parcel.streams.values():
                stream.sent = stream.acked
