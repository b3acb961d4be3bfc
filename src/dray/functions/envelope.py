"""The function of a job as bytes, under a header that says what it needs: checked before any of it is opened.

Layout of `spec.function`: `DF1\\0`, u32 length of the header, the header as JSON, then the packed function, or nothing
where it is so large that it travels as a blob (`digest`, `size`).
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dray.errors import InvalidInput
from dray.functions.modules import UNKNOWN, find_version, is_users, list_paths
from dray.functions.values import LoadRef, Packed, Part, Unpicklable, pack, unpack

MAGIC = b"DF1\0"
VERSION = 1
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_SCANNED_BYTES = 256 << 10


class Envelope(NamedTuple):
    """What the header of a function says, and its packed bytes; none of them where they travel as a blob."""

    name: str
    digest: str
    size: int
    python: str
    packages: dict[str, str]
    paths: tuple[str, ...]
    body: Part

    @property
    def inline(self) -> bool:
        return len(self.body) > 0


class Sealed(NamedTuple):
    """A function ready to be sent: the bytes of `spec.function`; `blob` where the function goes ahead as one."""

    function: bytes
    name: str
    digest: str
    blob: Packed | None
    refs: tuple[str, ...] = ()


def seal(function: Callable[..., Any]) -> Sealed:
    """Pack a function. Raises `Unpicklable` that names it and what stands in the way."""
    name = tell_name(function)
    packed = _pack_function(function, name)
    data = packed.join()
    digest = packed.digest()
    header = {
        "v": VERSION,
        "name": name,
        "digest": digest,
        "size": packed.size,
        "python": PYTHON,
        "packages": _list_packages(function, data),
        "paths": list_paths(),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = data if packed.inline else b""
    head = MAGIC + len(text).to_bytes(4, "little") + text
    return Sealed(head + body, name, digest, None if packed.inline else packed, packed.refs)


def read_envelope(data: Part) -> Envelope:
    """Read the header; the function itself stays closed."""
    view = memoryview(data)
    length = int.from_bytes(view[4:8], "little")
    if view.nbytes < 8 or view[:4] != MAGIC or 8 + length > view.nbytes:
        raise InvalidInput("these bytes are no packed function")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
        if header["v"] != VERSION:
            raise InvalidInput(
                f"this function was packed in version {header['v']} of the format and {VERSION} is known here: "
                "install the same release of dray on both sides"
            )
        return Envelope(
            str(header["name"]),
            str(header["digest"]),
            int(header["size"]),
            str(header["python"]),
            {str(name): str(version) for name, version in header["packages"].items()},
            tuple(map(str, header.get("paths", ()))),
            view[8 + length :],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise InvalidInput(f"the header of a packed function cannot be read: {fault}") from None


def find_mismatch(envelope: Envelope) -> str:
    """Say how this interpreter differs from the caller's, so that the function must not run here; empty where not.

    Packages may differ in their last number: those are repairs.
    """
    if envelope.python != PYTHON:
        return (
            f"{envelope.name}() was sent by Python {envelope.python} and the worker's is {PYTHON} "
            f"({sys.executable}): use the same minor version on both sides, or name a venv of the worker that has it "
            "(env={'VIRTUAL_ENV': '/opt/venvs/mine'})"
        )
    differing = []
    for package, wanted in sorted(envelope.packages.items()):
        found = find_version(package)
        if not found:
            differing.append(f"{package} {wanted} is missing")
        elif found.split(".")[:2] != wanted.split(".")[:2]:
            differing.append(f"{package} is {found} and the caller has {wanted}")
    if differing:
        return (
            f"{envelope.name}() does not fit the worker's environment ({sys.executable}): {'; '.join(differing)}: "
            "install the same versions, or name a venv that has them (env={'VIRTUAL_ENV': '/opt/venvs/mine'})"
        )
    return ""


def open_function(packed: Part, load_ref: LoadRef | None = None) -> Callable[..., Any]:
    """Unpack a function: only ever in the process that is to run it."""
    function = unpack(packed, load_ref)
    if not callable(function):
        raise InvalidInput(f"what was sent as a function is a {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # callable, as asked above


def tell_name(function: Any) -> str:
    """How people call it: `train`, `Model.fit`, `<lambda>`."""
    inner = function
    while (following := getattr(inner, "func", None) or getattr(inner, "__wrapped__", None)) is not None:
        inner = following
    name = getattr(inner, "__qualname__", "") or type(inner).__name__
    return str(name).rpartition("<locals>.")[2][:100]


def _pack_function(function: Callable[..., Any], name: str) -> Packed:
    if not callable(function):
        raise InvalidInput(f"{function!r} is no function: give a function, or a command as a list of words")
    try:
        return pack(function)
    except Unpicklable as fault:
        raise Unpicklable(f"the function {name}() {fault.message}{_hint(function)}") from fault


def _hint(function: Callable[..., Any]) -> str:
    try:
        outside = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return ""
    for name, value in {**outside.nonlocals, **outside.globals}.items():
        try:
            pack(value)
        except Unpicklable:
            kind = type(value).__name__
            return f" (it uses {name!r}, a {kind}: make it inside the function, or pass something else)"
    return ""


def _list_packages(function: Callable[..., Any], data: bytes) -> dict[str, str]:
    """Packages that the function is made of or names, as far as they can be seen without running it."""
    seen = {str(name).partition(".")[0] for name in _named_modules(function, data)}
    packages = {}
    for top in sorted(seen - {"dray", "__main__", ""} - sys.stdlib_module_names):
        if top in sys.modules and not is_users(sys.modules[top]):
            version = find_version(top)
            if version and version != UNKNOWN:
                packages[top] = version
    return packages


def _named_modules(function: Callable[..., Any], data: bytes) -> Iterator[str]:
    for found in _NAME.finditer(data[:_SCANNED_BYTES]):
        name = found.group().decode()
        if name.partition(".")[0] in sys.modules:
            yield name
    code = getattr(function, "__code__", None)
    scope = getattr(function, "__globals__", {})
    for name in getattr(code, "co_names", ()):
        value = scope.get(name)
        yield getattr(value, "__name__" if inspect.ismodule(value) else "__module__", None) or ""
