"""One HTTP connection over which blobs go up and down, kept open between them. Blocking."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dray.client.reach.discovery import Target
from dray.client.reach.http import connect, tell_refusal
from dray.functions.values import Part

ASK_FIRST_BYTES = 8 << 20
SILENCE_S = 120.0
PIECE_BYTES = 1 << 20
ANSWER_S = 0.5
NOBODY = "0" * 64


class BlobLine:
    """One HTTP connection, kept open."""

    def __init__(self, target: Target) -> None:
        self._target, self._http = target, connect(target, SILENCE_S)

    def close(self) -> None:
        self._http.close()

    def put(self, digest: str, parts: Sequence[Part], size: int, ask_first: bool) -> None:
        """Upload a blob unless the hub has it."""
        path = f"/api/v1/blobs/{digest}"
        if (ask_first or size >= ASK_FIRST_BYTES) and self._has(path):
            return
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        # A hub that refuses says so before all has arrived; its words may still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._http.request("PUT", path, _in_pieces(parts), self._http.sign(headers))
        answer = self._http.getresponse()
        body = answer.read()
        if answer.status not in (200, 201, 204):
            raise tell_refusal(self._target, answer.status, body)

    def ask(self, method: str, path: str) -> Any:
        """Ask for a document."""
        answer = self._http.ask(method, path)
        body = answer.read()
        if answer.status >= 300:
            raise tell_refusal(self._target, answer.status, body)
        return json.loads(body)

    def check_size(self, size: int) -> None:
        """Raise what the hub would refuse a value of this size with, without sending any of it."""
        try:
            self._http.putrequest("PUT", f"/api/v1/blobs/{NOBODY}")
            for name, value in self._http.sign({"Content-Length": str(size)}).items():
                self._http.putheader(name, value)
            self._http.endheaders()
            if self._http.sock is not None:
                self._http.sock.settimeout(ANSWER_S)
            answer = self._http.getresponse()
            raise tell_refusal(self._target, answer.status, answer.read())
        except TimeoutError:
            # It waits for the value: nothing stands against it.
            return
        finally:
            self._http.close()

    def get(self, digest: str, size: int) -> bytearray:
        """Fetch a blob into memory that may be written to."""
        answer = self._http.ask("GET", f"/api/v1/blobs/{digest}")
        if answer.status != 200:
            raise tell_refusal(self._target, answer.status, answer.read())
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            got = answer.readinto(view[at:])
            if not got:
                raise ConnectionError(f"a blob of {size} bytes broke off after {at}")
            at += got
        answer.read()
        return data

    def read(self, digest: str) -> bytes:
        """Fetch a blob of a size that only the hub knows: a small one."""
        answer = self._http.ask("GET", f"/api/v1/blobs/{digest}")
        body = answer.read()
        if answer.status != 200:
            raise tell_refusal(self._target, answer.status, body)
        return body

    def _has(self, path: str) -> bool:
        answer = self._http.ask("HEAD", path)
        answer.read()
        return answer.status == 200


def _in_pieces(parts: Sequence[Part]) -> Iterable[memoryview]:
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
