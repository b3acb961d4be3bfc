"""Frames that nobody should send: valid messages of every kind, bent in their structure and in their bytes.

Knows how messages look and how to spoil them, in JSON and in msgpack; not who reads them. The same seed gives the same
frames: a finding can be repeated.
"""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

import msgspec
from tools.fuzz_samples import NUMBERS, OTHERS, RAW_JSON, RAW_MSGPACK, TEXTS, UNIONS

Tree = dict[str, Any] | list[Any]


class Bench(NamedTuple):
    """One encoding: how to write it, and what only bytes written by hand can hold."""

    binary: bool
    encode: Any
    raw: list[bytes]


BENCHES = {
    True: Bench(True, msgspec.msgpack.Encoder().encode, RAW_MSGPACK),
    False: Bench(False, msgspec.json.Encoder().encode, RAW_JSON),
}


class Spoiler:
    """Draws spoilt frames of one union in one encoding. `facts` are ids that exist: they lead deeper."""

    def __init__(self, union: str, binary: bool, rng: random.Random, facts: list[Any] | None = None) -> None:
        self._bench, self._rng = BENCHES[binary], rng
        # Reading packed bytes again is the fastest deep copy there is.
        self._messages = [(kind, msgspec.msgpack.encode(payload)) for kind, payload in UNIONS[union]]
        self._has_ids = union == "client"
        self.facts: list[Any] = facts if facts is not None else []

    def draw(self) -> bytes:
        """One frame: mostly a message with a few faults in its tree, often with faults in its bytes too."""
        rng = self._rng
        dice = rng.random()
        if dice < 0.05:
            return rng.randbytes(rng.randrange(64))
        trees = [self.draw_tree() for _ in range(rng.choice((2, 3, 8)) if dice < 0.15 else 1)]
        frame: bytes = self._bench.encode(trees if dice < 0.15 else trees[0])
        if dice > 0.6:
            frame = self.bend(frame)
        return frame

    def draw_tree(self) -> dict[str, Any]:
        """A message with its tree spoilt in up to four places; sometimes left whole."""
        rng = self._rng
        kind, payload = rng.choice(self._messages)
        tree: dict[str, Any] = {"type": kind, "payload": msgspec.msgpack.decode(payload)}
        if self._has_ids:
            tree["id"] = rng.randrange(1000)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
            spoil_once(tree, rng, self.atom)
        return tree

    def atom(self) -> Any:
        """Something that may stand where it should not."""
        rng = self._rng
        dice = rng.random()
        if self.facts and dice < 0.3:
            return rng.choice(self.facts)
        if dice < 0.5:
            return rng.choice(NUMBERS)
        if dice < 0.75:
            return rng.choice(TEXTS)
        if dice < 0.9:
            return copy_tree(rng.choice(OTHERS))
        return msgspec.Raw(rng.choice(self._bench.raw))

    def bend(self, frame: bytes) -> bytes:
        """Spoil bytes: flip, cut, insert, repeat, or splice two frames."""
        rng = self._rng
        for _ in range(rng.choice((1, 1, 2, 8))):
            if not frame:
                return b"\0"
            at = rng.randrange(len(frame))
            dice = rng.randrange(6)
            if dice == 0:
                frame = frame[:at] + bytes((frame[at] ^ (1 << rng.randrange(8)),)) + frame[at + 1 :]
            elif dice == 1:
                frame = frame[:at]
            elif dice == 2:
                frame = frame[:at] + rng.randbytes(rng.randrange(1, 9)) + frame[at:]
            elif dice == 3:
                frame = frame[:at] + frame[max(0, at - rng.randrange(1, 40)) :]
            elif dice == 4:
                frame = frame[:at] + rng.choice(self._bench.raw) + frame[at + 1 :]
            else:
                other: bytes = self._bench.encode(self.draw_tree())
                frame = frame[:at] + other[rng.randrange(len(other)) :]
        return frame


def spoil_once(tree: Tree, rng: random.Random, atom: Any) -> None:
    """Change one place of a tree, drawn by walking down from the top."""
    if not tree:
        return
    holder, key = _draw_place(tree, rng)
    dice = rng.randrange(10)
    if dice < 5:
        holder[key] = atom()
    elif dice == 5:
        del holder[key]
    elif dice == 6:
        holder[key] = _nest(holder[key], rng)
    elif dice == 7 and isinstance(holder, dict):
        holder[rng.choice(("", "unknown", str(key).upper(), f"{key}_", "type"))] = holder.pop(key)
    elif dice == 8 and isinstance(holder, list):
        holder *= rng.choice((2, 50))
    elif isinstance(holder, dict):
        holder[rng.choice(("extra", "id", "a" * 300))] = atom()


def copy_tree(value: Any) -> Any:
    """Copy what will be changed; atoms stay."""
    if isinstance(value, dict):
        return {key: copy_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_tree(item) for item in value]
    return value if isinstance(value, (str, int, float, bytes, type(None))) else copy.copy(value)


def _draw_place(tree: Tree, rng: random.Random) -> tuple[Any, Any]:
    holder: Any = tree
    while True:
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        below = holder[key]
        if not isinstance(below, (dict, list)) or not below or rng.random() < 0.1:
            return holder, key
        holder = below


def _nest(value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 3, 40, 70, 150))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value
