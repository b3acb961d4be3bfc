"""Every number, text and container that is decoded from outside has a bound; a field without one fails here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect as shapes

import dray.wire
from dray.core.model import bounds, capability
from dray.hub.http.calls import ROUTES
from dray.wire.messages import client as client_messages
from dray.wire.messages import codec
from dray.wire.messages import hub as hub_messages
from dray.wire.messages import worker as worker_messages

# Where a bound is found elsewhere: the field, and why it needs none here.
EXCEPTIONS = {
    "Envelope.payload": "kept as it came: opened by the struct of its type",
    "Request.payload": "kept as it came: opened by the struct of its type",
    "Request.id": "echoed and no more: msgpack holds 64 bits, and text is bounded",
    "Reply.id": "the client's own number back",
    "Reply.payload": "an answer of the hub that the client chose; the frame bounds it",
    "Reply.error": "an answer of the hub that the client chose; the frame bounds it",
    "Submit.specs": "each is read field by field by `check_spec`",
    "Calls.spec": "read field by field by `check_spec`",
    "Calls.args": "the frame bounds the bytes, see `PackedValue`",
    "CallsResult.value": "the frame bounds the bytes, see `PackedValue`",
    "CallsAssign.args": "the frame bounds the bytes, see `PackedValue`",
    "Plan.spec": "read field by field by `check_spec`",
    "TemplateRequest.spec": "a template is read value by value by `check_template`",
    "TemplateRequest.params": "a template is read value by value by `check_template`",
    "RenderRequest.params": "each is read by the parameter that it is for",
    "Edit.changes": "read field by field by `check_spec`",
    "RerunRequest.changes": "read field by field by `check_spec`",
    "WorkloadRequest.defaults": "read field by field by `check_terms`",
    "WorkloadUpdate.defaults": "read field by field by `check_terms`",
    "WhatIfRequest.policy": "read value by value by `check_policy`",
    "WhatIfRequest.jobs": "each is read field by field by `check_spec`, and there are few",
    "ReplayRequest.policies": "each is read value by value by `check_policy`",
    "UpdateService.changes": "read field by field by `check_spec`",
    "UpdateRequest.changes": "read field by field by `check_spec`",
    "UpdateRequest.spec": "read field by field by `check_spec`",
}
# Read from a hub that has checked it when it was submitted, and stored: what was stored must open.
TRUSTED = {"JobSpec", "Policy"}


def decoded() -> dict[str, Any]:
    """What is read from outside: every message in its direction, and the bodies of the HTTP API."""
    tables: tuple[dict[str, Any], ...] = (
        worker_messages.WORKER_PAYLOADS,
        client_messages.CLIENT_PAYLOADS,
        hub_messages.HUB_PAYLOADS,
        {"envelope": codec.Envelope, "request": client_messages.Request, "reply": client_messages.Reply},
        {route.name: route.body for route in ROUTES if route.body is not None},
    )
    return {f"{place} {name}": kind for place, table in enumerate(tables) for name, kind in table.items()}


def structs_in(found: Any, seen: dict[type, shapes.StructType]) -> None:
    """Gather the structs that a type is made of."""
    if isinstance(found, shapes.StructType):
        if found.cls in seen or found.cls.__name__ in TRUSTED:
            return
        seen[found.cls] = found
        for field in found.fields:
            structs_in(field.type, seen)
    for part in parts_of(found):
        structs_in(part, seen)


def parts_of(found: Any) -> Iterator[Any]:
    if isinstance(found, shapes.Metadata):
        yield found.type
    elif isinstance(found, shapes.UnionType):
        yield from found.types
    elif isinstance(found, shapes.DictType):
        yield from (found.key_type, found.value_type)
    elif isinstance(found, (shapes.ListType, shapes.VarTupleType, shapes.SetType)):
        yield found.item_type
    elif isinstance(found, shapes.TupleType):
        yield from found.item_types


def faults(found: Any) -> Iterator[str]:
    """Say what of a type has no bound."""
    if isinstance(found, (shapes.IntType, shapes.FloatType)):
        low = found.ge if found.ge is not None else found.gt
        high = found.le if found.le is not None else found.lt
        if low is None or high is None:
            yield f"{type(found).__name__} without bounds on both sides"
    elif isinstance(found, shapes.StrType):
        if found.max_length is None and not (found.pattern or "").endswith("$"):
            yield "text of any length"
    elif isinstance(found, shapes.BytesType):
        if found.max_length is None:
            yield "bytes of any number"
    elif isinstance(found, (shapes.ListType, shapes.DictType, shapes.VarTupleType, shapes.SetType)):
        if found.max_length is None:
            yield f"{type(found).__name__} of any length"
    elif isinstance(found, (shapes.AnyType, shapes.RawType)):
        yield "anything at all"
    for part in parts_of(found):
        yield from faults(part)


def all_decoded() -> dict[type, shapes.StructType]:
    seen: dict[type, shapes.StructType] = {}
    for kind in decoded().values():
        structs_in(shapes.type_info(kind), seen)
    return seen


def test_every_field_that_is_read_from_outside_is_bounded() -> None:
    open_ends = {
        f"{cls.__name__}.{field.name}": sorted(set(faults(field.type)))
        for cls, found in all_decoded().items()
        for field in found.fields
        if list(faults(field.type))
    }
    assert {name: what for name, what in open_ends.items() if name not in EXCEPTIONS} == {}
    assert sorted(EXCEPTIONS) == sorted(open_ends), "an exception that is none any more"


def test_every_struct_of_the_wire_is_read_from_outside_or_an_answer() -> None:
    answers: dict[type, shapes.StructType] = {}
    for route in ROUTES:
        for kind in route.answers.values():
            if kind is not None:
                structs_in(shapes.type_info(kind), answers)
    structs_in(shapes.type_info(importlib.import_module("dray.wire.schemas.jobs").ErrorAnswer), answers)
    known = {*answers, *all_decoded()}
    modules = [
        importlib.import_module(f"dray.wire.{one.name}") for one in pkgutil.iter_modules(dray.wire.__path__)
    ]
    here = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__
    }
    assert {kind.__qualname__ for kind in here - known} == set()


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        (worker_messages.Offered, capability.Capability),
        (worker_messages.OfferedGpus, capability.GpuInfo),
        (worker_messages.OfferedCard, capability.Device),
    ],
)
def test_what_is_offered_has_the_fields_of_what_is_kept(outside: Any, inside: Any) -> None:
    assert outside.__struct_fields__ == inside.__struct_fields__
    assert outside.__struct_defaults__ == inside.__struct_defaults__


def test_the_check_sees_a_field_without_a_bound() -> None:
    class Bad(msgspec.Struct):
        number: int
        text: str
        many: list[bounds.Small]
        by_name: dict[bounds.Word, float]
        fine: bounds.Few[bounds.Seconds]

    [found] = [shapes.type_info(Bad)]
    assert isinstance(found, shapes.StructType)
    assert [field.name for field in found.fields if list(faults(field.type))] == [
        "number",
        "text",
        "many",
        "by_name",
    ]
