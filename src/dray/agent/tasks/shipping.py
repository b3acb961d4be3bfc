"""Task output on its way to the hub: read from the supervisor's files, sent within a window, advanced by acks.

A full window stops the shipping, never the task. After a restart of the agent the hub's first ack says from where
to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dray.agent.supervisor.processes.output import MOST_BYTES, STREAMS, read_output
from dray.agent.supervisor.records.owned_files import Place

CHUNK_BYTES = 64 << 10


class Stream:
    """Where one stream of one attempt stands: sent up to, acked up to."""

    __slots__ = ("acked", "sent")

    def __init__(self) -> None:
        self.sent = self.acked = 0


class Parcel:
    """The output of one attempt, or of one call: `attempt` is then its lane, and the files go when they are shipped."""

    def __init__(self, uid: str, task_id: str, place: Place, attempt: str) -> None:
        self.uid, self.task_id, self.place, self.attempt = uid, task_id, place, attempt
        self.streams = {stream: Stream() for stream in STREAMS}
        self.ended = False


def read_last(place: Place, most_bytes: int) -> str:
    """The last that an attempt printed: of its errors, or of its output where there are none."""
    for stream in ("stderr", "stdout"):
        _, _, total = read_output(place, stream, 0, 0)
        at, data = max(0, total - most_bytes), b""
        while at < total:
            more, at, _ = read_output(place, stream, at, total - at)
            if not more:
                break
            data, at = data + more, at + len(more)
        if text := data.decode("utf-8", "replace").strip():
            return text
    return ""


class Shipper:
    """Sends what was printed; `push` queues a message for the hub. `cap_bytes` of what a call has in one file go."""

    def __init__(
        self,
        attempts: Path,
        window_bytes: int,
        cap_bytes: int,
        push: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._attempts, self._window, self._push = str(attempts), window_bytes, push
        self._cap_bytes = cap_bytes
        self.parcels: dict[str, Parcel] = {}

    def follow(self, uid: str, task_id: str, ended: bool) -> None:
        """Ship an attempt's output from now on; a first look follows at once."""
        parcel = self.parcels.get(uid)
        if parcel is None:
            parcel = self.parcels[uid] = Parcel(uid, task_id, Place(f"{self._attempts}/{uid}"), uid)
        parcel.ended = parcel.ended or ended
        self.ship(parcel)

    def follow_call(self, lane: str, index: int, task_id: str, place: Place, ended: bool) -> None:
        """Ship what a call prints; `place` may be another one when it has ended."""
        uid = f"{lane}.{index}"
        parcel = self.parcels.get(uid)
        if parcel is None:
            parcel = self.parcels[uid] = Parcel(uid, task_id, place, lane)
        parcel.place, parcel.ended = place, parcel.ended or ended
        self.ship(parcel)

    def ships_from(self, folder: str) -> bool:
        """Whether anything below a folder is still on its way."""
        return any(parcel.place.path.startswith(f"{folder}/") for parcel in self.parcels.values())

    def look(self) -> bool:
        """Ship what has come since the last look; True when anything did."""
        moved = [self.ship(parcel) for parcel in list(self.parcels.values())]
        return any(moved)

    def ship(self, parcel: Parcel) -> bool:
        """Send as much as the window allows; an attempt that ended and was received whole is let go."""
        moved = False
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
            parcel.place.empty()

    def _send_chunk(self, parcel: Parcel, name: str, stream: Stream) -> bool:
        # The supervisor bounds the files that it writes; those of a call are written by the call.
        most = MOST_BYTES if parcel.attempt == parcel.uid else self._cap_bytes
        data, offset, _ = read_output(parcel.place, name, stream.sent, CHUNK_BYTES, most)
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
