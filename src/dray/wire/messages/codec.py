"""Envelopes to bytes and back, for every channel that speaks them.

A frame is one envelope `{"type", "payload", "error"}`, or, between peers that named it, a list of them. The payload
stays raw until its type is known, so that an error can name the message and the place inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dray.core.model.bounds import Line, Many, Text1M
from dray.errors import InvalidInput

MAX_DEPTH = 64


class Envelope(msgspec.Struct):
    """One message, its payload not yet read."""

    type: Line
    payload: msgspec.Raw = msgspec.Raw(b"")
    error: Text1M = ""


class Codec:
    """One encoding of one closed union. `payloads` maps a message type to the struct of its payload."""

    def __init__(self, payloads: Mapping[str, type[Any]], binary: bool) -> None:
        self.binary = binary
        module: Any = msgspec.msgpack if binary else msgspec.json
        self._frame = module.Decoder(Envelope | Many[Envelope])
        self._payloads = {name: module.Decoder(kind) for name, kind in payloads.items()}
        self._encoder = module.Encoder()
        self._empty = msgspec.Raw(b"\x80" if binary else b"{}")
        self._null = b"\xc0" if binary else b"null"

    def split(self, frame: bytes | str, lists: bool = True) -> list[Envelope]:
        """Read a frame's envelopes without opening their payloads; `lists`: whether it may hold several."""
        try:
            decoded = self._frame.decode(frame)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as fault:
            raise InvalidInput(f"the frame is not an envelope: {_words(fault)}") from None
        if not isinstance(decoded, list):
            return [decoded]
        if not lists:
            raise InvalidInput(
                "the frame is a list: send one envelope per frame, or name the feature 'list' in register"
            )
        if not decoded:
            raise InvalidInput("the frame is an empty list: a list holds at least one envelope")
        return decoded

    def open(self, envelope: Envelope) -> Any:
        """Read an envelope's payload as the struct of its type."""
        decoder = self._payloads.get(envelope.type)
        if decoder is None:
            known = ", ".join(sorted(self._payloads))
            raise InvalidInput(f"unknown message type {envelope.type[:64]!r}: this peer may send {known}")
        raw = envelope.payload
        if len(raw) == 0 or bytes(raw) == self._null:
            raw = self._empty
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as fault:
            raise InvalidInput(f"{envelope.type}: {_words(fault)}") from None

    def encode(self, messages: Sequence[dict[str, Any]]) -> bytes:
        """Write one message as an envelope, several as a list of them (binary peers only)."""
        return bytes(self._encoder.encode(messages[0] if len(messages) == 1 else messages))


def message(kind: str, payload: Any = None, error: str = "") -> dict[str, Any]:
    """Build an envelope for `Codec.encode`; empty parts are left out."""
    envelope: dict[str, Any] = {"type": kind}
    if payload:
        envelope["payload"] = payload
    if error:
        envelope["error"] = error
    return envelope


def depth_of(value: Any, limit: int = MAX_DEPTH) -> int:
    """Measure how deep a decoded document nests, stopping just past `limit`."""
    level, front = 0, [value]
    while front and level <= limit:
        level += 1
        front = [
            child
            for item in front
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return level


def _words(fault: Exception) -> str:
    if isinstance(fault, RecursionError):
        return f"nested deeper than {MAX_DEPTH} levels"
    return str(fault)
