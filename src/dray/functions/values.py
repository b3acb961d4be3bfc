"""Values as bytes: one pickle and its buffers beside it, so that arrays travel without being copied into the pickle.

Layout: `DV1\\0`, u32 count, count times u64 size, the pickle, then every buffer at a multiple of 64 bytes from the
start. Plain pickle is tried first; cloudpickle takes over what pickle cannot name, and what lives in `__main__` or in
another module that no other process could import. Surprising rule: something that stands for a value to come (see
`Pledge`) packs as a reference, and unpacks as that value itself.
"""

from __future__ import annotations

import pickle
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from types import ModuleType
from typing import Any, NamedTuple

from dray.errors import InvalidInput
from dray.functions.modules import HiddenModules

MAGIC = b"DV1\0"
INLINE_BYTES = 64 << 10
ALIGNMENT = 64
_ALONE = struct.Struct("<4sIQ")
_HEAD = struct.Struct("<4sI")
_MAIN = b"__main__"
_PADDING = bytes(ALIGNMENT)

Part = bytes | bytearray | memoryview
LoadRef = Callable[[str], Any]
# Of these nothing can refer to anything: most results of short calls are such.
_ATOMS = frozenset((int, float, bool, str, bytes, type(None)))
_ALONE_START = MAGIC + (1).to_bytes(4, "little")


class _Context(threading.local):
    """What packing and unpacking in this thread can see."""

    refs: list[str] | None = None
    load_ref: LoadRef | None = None


_context = _Context()
hidden_modules = HiddenModules()


class Unpicklable(InvalidInput):
    """A function, an argument or a result that cannot be made into bytes."""

    code = "unpicklable"


class DamagedValue(InvalidInput):
    """Bytes that are no packed value."""

    code = "damaged_value"


class UnsafeValue(InvalidInput):
    """A value that is not opened here, since that could run code; `named` is what it would look up first."""

    code = "unsafe_value"

    def __init__(self, message: str, named: str = "") -> None:
        super().__init__(message)
        self.named = named


class Packed(NamedTuple):
    """A value as the parts it is written in, one after the other. `refs` are the tasks whose results it needs."""

    parts: tuple[Part, ...]
    size: int
    refs: tuple[str, ...] = ()

    @property
    def inline(self) -> bool:
        """Whether it is small enough to travel inside a message."""
        return self.size <= INLINE_BYTES

    def join(self) -> bytes:
        """All of it as one piece."""
        return (
            self.parts[0] if len(self.parts) == 1 and type(self.parts[0]) is bytes else b"".join(self.parts)
        )

    def digest(self) -> str:
        """The name of its content: sha256 in hex."""
        seen = sha256()
        for part in self.parts:
            seen.update(part)
        return seen.hexdigest()


class Pledge:
    """Something whose value is the result of a task: packs as a reference to it."""

    __slots__ = ()

    def pledge(self) -> str:
        """The id of the task."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        refs = _context.refs
        if refs is None:
            raise TypeError(
                f"a {type(self).__name__} can only be pickled as an argument of another call of the same hub"
            )
        task_id = self.pledge()
        refs.append(task_id)
        return load_reference, (task_id,)


def load_reference(task_id: str) -> Any:
    """Give the value of a task; called by pickle, while `unpack` runs."""
    load_ref = _context.load_ref
    if load_ref is None:
        raise DamagedValue(f"the value needs the result of {task_id}, which cannot be had here")
    return load_ref(task_id)


def pack(value: Any) -> Packed:
    """Make bytes of a value. Raises `Unpicklable` with the reason."""
    if type(value) in _ATOMS:
        data = pickle.dumps(value, 5)
        return Packed((_ALONE.pack(MAGIC, 1, len(data)) + data,), _ALONE.size + len(data))
    buffers: list[pickle.PickleBuffer] = []
    refs: list[str] = []
    outer = _context.refs
    _context.refs = refs
    try:
        data, hidden = _dump_plainly(value, buffers)
        if not data:
            buffers.clear()
            refs.clear()
            data = _dump_anything(value, buffers, hidden)
    finally:
        _context.refs = outer
    if not buffers:
        return Packed((_ALONE.pack(MAGIC, 1, len(data)) + data,), _ALONE.size + len(data), tuple(refs))
    return _lay_out(data, [buffer.raw() for buffer in buffers], tuple(refs))


def _dump_plainly(value: Any, buffers: list[pickle.PickleBuffer]) -> tuple[bytes, list[ModuleType]]:
    """Pickle; empty where that fails, or would only work here, with the modules that must travel along."""
    try:
        # `append` gives None, which tells pickle to keep the buffer out of its stream.
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    except (MemoryError, InvalidInput):
        raise
    except Exception:  # noqa: BLE001 - anything may be raised by a user's own __reduce__
        return b"", []
    hidden = hidden_modules.named_in(data)
    return (b"" if hidden or _MAIN in data else data), hidden


def _dump_anything(value: Any, buffers: list[pickle.PickleBuffer], hidden: list[ModuleType]) -> bytes:
    import cloudpickle

    for module in hidden:
        # For good: what was sent by value once comes back by value, and must be the same class here.
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value, 5, buffer_callback=buffers.append))
    except (MemoryError, InvalidInput):
        raise
    except Exception as fault:
        raise Unpicklable(f"cannot be pickled: {str(fault) or type(fault).__name__}") from fault


def _lay_out(data: bytes, views: Sequence[memoryview], refs: tuple[str, ...]) -> Packed:
    sizes = [len(data), *(view.nbytes for view in views)]
    head = _HEAD.pack(MAGIC, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
    parts: list[Part] = [head + data]
    at = len(head) + len(data)
    for view in views:
        if gap := -at % ALIGNMENT:
            parts.append(_PADDING[:gap])
        parts.append(view)
        at += gap + view.nbytes
    return Packed(tuple(parts), at, refs)


def unpack(data: Part, load_ref: LoadRef | None = None) -> Any:
    """Undo `pack`. Buffers are views into `data`, so it must stay as it is; writable data makes writable arrays.

    A small read-only value is copied first, so that its arrays may be written to like any others.
    """
    if type(data) is bytes and data[:8] == _ALONE_START:
        # Most values are small and have no buffers: nothing to be cut out.
        if int.from_bytes(data[8:16], "little") != len(data) - _ALONE.size:
            raise DamagedValue(f"a packed value was cut to {len(data)} bytes, or has a tail")
        return _load(data[_ALONE.size :], (), load_ref)
    stream, buffers = cut(data)
    return _load(stream, buffers, load_ref)


def cut(data: Part) -> tuple[memoryview, list[memoryview]]:
    """The pickle of a packed value, and its buffers."""
    view = memoryview(data)
    sizes, at = _read_head(view)
    if len(sizes) > 1 and view.readonly and view.nbytes <= INLINE_BYTES:
        view = memoryview(bytearray(view))
    stream = view[at : at + sizes[0]]
    at += sizes[0]
    buffers = []
    for size in sizes[1:]:
        at += -at % ALIGNMENT
        buffers.append(view[at : at + size])
        at += size
    if at != view.nbytes:
        raise DamagedValue(f"a packed value of {at} bytes was cut to {view.nbytes}, or has a tail")
    return stream, buffers


def _load(stream: Part, buffers: Sequence[memoryview], load_ref: LoadRef | None) -> Any:
    outer = _context.load_ref
    _context.load_ref = load_ref
    try:
        return pickle.loads(stream, buffers=buffers)
    finally:
        _context.load_ref = outer


def _read_head(view: memoryview) -> tuple[tuple[int, ...], int]:
    if view.nbytes < _ALONE.size or view[:4] != MAGIC:
        raise DamagedValue("these bytes are no packed value")
    count = int.from_bytes(view[4:8], "little")
    if not 1 <= count <= (view.nbytes - 8) // 8:
        raise DamagedValue(f"a packed value says that it has {count} parts")
    sizes = struct.unpack_from(f"<{count}Q", view, 8)
    at = 8 + 8 * count
    if sum(sizes) + at > view.nbytes:
        raise DamagedValue(f"a packed value of at least {sum(sizes) + at} bytes was cut to {view.nbytes}")
    return sizes, at


def pack_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Packed:
    """Pack the arguments of one call of `name`; the error names the argument that cannot travel."""
    try:
        return pack((tuple(args), kwargs))
    except Unpicklable as fault:
        raise Unpicklable(_blame(name, args, kwargs) or f"arguments of {name}(): {fault.message}") from fault


def unpack_call(data: Part, load_ref: LoadRef | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Undo `pack_call`."""
    args, kwargs = unpack(data, load_ref)
    return args, kwargs


def _blame(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named: list[tuple[str, Any]] = [(f"argument {place + 1}", value) for place, value in enumerate(args)]
    named += [(f"argument {key!r}", value) for key, value in kwargs.items()]
    for where, value in named:
        try:
            pack(value)
        except Unpicklable as fault:
            kind = type(value).__name__
            return f"{where} of {name}() is a {kind} that {fault.message}"
    return ""
