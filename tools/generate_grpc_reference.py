"""Write docs/reference/grpc.md from the protos: services with their methods, then every message with its fields.

Reads descriptors with the comments that the compiler keeps, so that a page and a proto cannot differ.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

from dray.hub.grpc.serving import KNOWN

SOURCE = Path(__file__).resolve().parent.parent / "src"
INTRODUCTION = """# gRPC

`dray hub --grpc-port PORT` answers gRPC beside HTTP: package `dray.v1`, two services, `grpc.health.v1` and
reflection. [How to use
it](../howto/drive-dray-from-any-language.md), [how to run tasks with it](../howto/an-executor-in-any-
language.md). The
protos lie in the wheel, in `dray/v1/`; Python finds typed stubs there (`from dray.v1 import scheduler_pb2`).

- **One spelling.** A field has the name, unit and meaning of the key that [HTTP](api.md) has. A moment is a
  `Timestamp`, a state an enum; null is a field that is not set. In `JobSpec` a field that is not set has its
  default, and zero is a value.
- **Who asks**: metadata `authorization: Bearer TOKEN`; scopes, limits, budgets and audit are those of HTTP. A
  stream ends with its token.
- **Again**: the same `request_id` (kept a week) or id with the same content gives what is there; with other
  content it is `ALREADY_EXISTS`. Each method says in the proto whether it may be sent twice
  (`idempotency_level`).
- **Pages**: `page_size` is 100 by default and 1,000 at most, `next_page_token` goes with the same filter.
- **Masks**: with `update_mask` a named field that is not set gets its default back; without it, what is set is
  changed.
- **Deadlines**: a call without one is given up after 30 s. A wait takes a minute at most and ends a little
  before the deadline of its call. A change whose deadline passed may have been made: send it again with its
  `request_id`.
- **Streams** carry lists: what came since the last message; an empty one, each 15 s, is a sign of life.
- **Unknown fields** are refused where something is to be changed, and passed by where something is read.

| status | when | details beside `ErrorInfo` (domain `dray`, the [code](errors.md) in capitals) |
|---|---|---|
| `INVALID_ARGUMENT` | a spec, field, filter or policy is wrong or too large | `BadRequest`: every fault at once |
| `UNAUTHENTICATED`, `PERMISSION_DENIED` | no good token, or one without the scope | |
| `NOT_FOUND` | it is not there, or not yours | `ResourceInfo` |
| `ALREADY_EXISTS` | the id or `request_id` stands for other content | |
| `FAILED_PRECONDITION` | the present state rules it out | `PreconditionFailure` where there is a list |
| `ABORTED` | the `etag` is stale: look again | |
| `RESOURCE_EXHAUSTED` | slow down, or the disk is full | `RetryInfo`, `QuotaFailure` |
| `UNAVAILABLE` | the hub starts, stops, reloads or does not lead | `RetryInfo` |
| `DEADLINE_EXCEEDED` | no answer in time | |
| `INTERNAL` | the hub failed; its doctor has the report | |
"""


def write_reference() -> str:
    """The whole page."""
    files = _describe()
    parts = [INTRODUCTION]
    for file in files:
        for place, service in enumerate(file.service):
            parts.append(f"## {service.name}\n\n{_comment(file, (6, place))}\n\n{_methods(file, place)}")
    parts.append("## Messages\n")
    for file in files:
        parts += [_enum(file, place) for place in range(len(file.enum_type))]
        for place, message in enumerate(file.message_type):
            parts += _message(file, message, (4, place), "")
    return "\n".join(parts)


@functools.cache
def _describe() -> Sequence[Any]:
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        protos = sorted(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "dray/v1").glob("*.proto"))
        words = ["-I.", "--include_source_info", f"--descriptor_set_out={image}", *protos]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], cwd=SOURCE, check=True)
        found = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
    return sorted(
        found.file, key=lambda file: (not file.service, file.name != "dray/v1/scheduler.proto", file.name)
    )


def _comment(file: Any, path: tuple[int, ...]) -> str:
    for location in file.source_code_info.location:
        if tuple(location.path) == path:
            return " ".join(location.leading_comments.split()).replace("|", "\\|")
    return ""


def _methods(file: Any, place: int) -> str:
    lines = ["| method | scope | what it does |", "|---|---|---|"]
    for number, method in enumerate(file.service[place].method):
        scopes = " or ".join(f"`{scope}`" for scope in KNOWN[method.name].row.operation.scopes)
        kind = {(False, False): "", (False, True): " (stream)", (True, True): " (both ways)"}
        shown = f"`{method.name}`{kind[method.client_streaming, method.server_streaming]}"
        lines.append(f"| {shown} | {scopes} | {_comment(file, (6, place, 2, number))} |")
    return "\n".join(lines) + "\n"


def _enum(file: Any, place: int) -> str:
    enum = file.enum_type[place]
    values = ", ".join(f"`{value.name}` = {value.number}" for value in enum.value)
    return f"### {enum.name}\n\n{_comment(file, (5, place))} {values}\n"


def _message(file: Any, message: Any, path: tuple[int, ...], within: str) -> Iterator[str]:
    lines = [f"### {within}{message.name}\n", _comment(file, path), ""]
    lines += ["| field | type | meaning |", "|---|---|---|"] if message.field else ["No fields."]
    for number, field in enumerate(message.field):
        about = _comment(file, (*path, 2, number))
        lines.append(f"| `{field.name}` | {_type(message, field)} | {about} |")
    yield "\n".join(lines) + "\n"
    for number, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(file, nested, (*path, 3, number), f"{within}{message.name}.")


def _type(message: Any, field: Any) -> str:
    name = field.type_name.removeprefix(".dray.v1.").removeprefix(".google.protobuf.")
    if not name:
        name = field.Type.Name(field.type).removeprefix("TYPE_").lower()
    entry = next(
        (one for one in message.nested_type if one.options.map_entry and name.endswith(one.name)), None
    )
    if entry is not None:
        return f"map of {_type(entry, entry.field[1])}"
    if field.label == field.LABEL_REPEATED:
        return f"list of {name}"
    return f"{name}, optional" if field.proto3_optional else name


if __name__ == "__main__":
    print(write_reference())
