"""An environment as it travels: the files that say what is in it, and the version of Python that they are for.

A document of its own, kept as a blob, so that ten thousand jobs name it and none carries it; its digest is its id, and
so equal files are one environment on every worker. Knows nothing about how one is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dray.errors import InvalidSnapshot, TooLarge
from dray.snapshots.manifest import DIGEST_BYTES

PREFIX = "env-"
MAGIC = "dray-environment-1"
MOST_BYTES = 8 << 20
_NAMES = {
    "requirements": "requirements.txt",
    "lock": "uv.lock",
    "pyproject": "pyproject.toml",
    "conda": "environment.yml",
}
_PYTHON = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-+@_<>=~!, ")


class Environment(msgspec.Struct, frozen=True, array_like=True):
    """What is to be built. `files` by their names: one of them, and with a lock its project beside it."""

    magic: str
    python: str
    kind: str
    files: dict[str, str]


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Environment).decode


def pack_environment(given: Mapping[str, str]) -> bytes:
    """Read the files that are named and put the document together; raises in words for people."""
    kind = next((key for key in _NAMES if key in given), "")
    files = {}
    if kind:
        path = Path(given[kind])
        files[_NAMES[kind]] = _read(path)
        if kind == "lock":
            files["pyproject.toml"] = _read(path.with_name("pyproject.toml"))
    packed = _encode(Environment(MAGIC, given.get("python", ""), kind, files))
    if len(packed) > MOST_BYTES:
        raise TooLarge(f"the files of an environment have at most {MOST_BYTES} bytes, these {len(packed)}")
    read_environment(packed)
    return packed


def read_environment(packed: bytes) -> Environment:
    """Undo `pack_environment`; raises InvalidSnapshot for what none is."""
    try:
        found = _decode(packed)
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise InvalidSnapshot(f"this is no environment: {fault}") from None
    known = {*_NAMES.values()}
    if found.magic != MAGIC or found.kind not in ("", *_NAMES) or {*found.files} - known:
        raise InvalidSnapshot("this is no environment that this version builds")
    if found.kind and _NAMES[found.kind] not in found.files:
        raise InvalidSnapshot(f"this environment has no {_NAMES[found.kind]}")
    if len(found.python) > 64 or {*found.python} - _PYTHON or found.python.startswith("-"):
        raise InvalidSnapshot(f"{found.python[:64]!r} is no version of Python: write 3.12")
    return found


def environment_id(packed: bytes) -> str:
    """The id of an environment."""
    return PREFIX + hashlib.sha256(packed).hexdigest()


def environment_digest(text: str) -> str:
    """The digest of the document that an id names; empty where it is none of ours."""
    digest = text.removeprefix(PREFIX)
    hexadecimal = len(digest) == 2 * DIGEST_BYTES and not set(digest) - set("0123456789abcdef")
    return digest if hexadecimal and digest != text else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is no text"
        raise InvalidSnapshot(f"the environment's {path} cannot be read: {reason}") from None
