"""Documents as messages and back, by the descriptors of the protos: a field and a key of one name are one thing.

Plans are made once per message type. Null in a document is a field that is not set; what has no presence and is not set
has its default. The surprising rule: a number that a `Struct` or a `Value` carries is whole again where it is whole,
since that is how JSON reads it too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from google.protobuf import struct_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dray.hub.documents.records import Document

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP, _STRUCT, _VALUE = (f"google.protobuf.{name}" for name in ("Timestamp", "Struct", "Value"))
_SPEC = "dray.v1.JobSpec"
# What a document has under one key, a number or an object, a message has under two.
RULES_OF_RETRIES = ("retries", "retry_rules")
Writer = Callable[[Any], Any]


class Plan(NamedTuple):
    """How the fields of one message are read off a document. `make` makes a message of what was read."""

    make: Callable[..., Any]
    plain: tuple[str, ...]
    odd: tuple[tuple[str, Writer], ...]


def to_message(kind: type[Any], document: Mapping[str, Any]) -> Any:
    """Make a message of a document; keys that it has no field for are left out."""
    plan = plan_of(kind.DESCRIPTOR)
    return plan.make(**_fields(plan, document))


def _fields(plan: Plan, document: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name in plan.plain:
        if (value := document.get(name)) is not None:
            found[name] = value
    for name, write in plan.odd:
        if (value := document.get(name)) is not None:
            found[name] = write(value)
    return found


@functools.cache
def plan_of(kind: Descriptor) -> Plan:
    """The plan of one type, made when it is first needed."""
    plain, odd = [], []
    for field in kind.fields:
        if (write := _writer(field)) is None:
            plain.append(field.name)
        else:
            odd.append((field.name, write))
    return Plan(GetMessageClass(kind), tuple(plain), tuple(odd))


def _writer(field: FieldDescriptor) -> Writer | None:
    """What makes a field's value of a document's; None where it is that."""
    one: Writer | None = None
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return None
        one = _message_writer(field.message_type)
    elif field.enum_type is not None:
        one = functools.partial(_number_of, field.enum_type)
    if one is None or not field.is_repeated:
        return one
    each = one
    return lambda values: [each(value) for value in values]


def _message_writer(kind: Descriptor) -> Writer:
    if kind.full_name == _TIMESTAMP:
        return read_moment
    if kind.full_name == _STRUCT:
        return to_struct
    if kind.full_name == _VALUE:
        return to_value
    if kind.full_name == _SPEC:
        return _write_spec
    # Not made here: messages may hold themselves.
    return lambda document: _fields(plan_of(kind), document)


def _number_of(kind: EnumDescriptor, word: str) -> int:
    return int(kind.values_by_name[f"{_prefix(kind.name)}{word.upper()}"].number)


@functools.cache
def _prefix(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in name).lstrip("_").upper() + "_"


def _write_spec(document: Mapping[str, Any]) -> dict[str, Any]:
    plain, rules = RULES_OF_RETRIES
    if isinstance(document.get(plain), dict):
        document = {**document, plain: None, rules: document[plain]}
    return _fields(_spec_plan(), document)


@functools.cache
def _spec_plan() -> Plan:
    from dray.v1 import resources_pb2

    return plan_of(resources_pb2.JobSpec.DESCRIPTOR)


def read_moment(text: str) -> dict[str, int]:
    """A moment of a document as the fields of a `Timestamp`."""
    since = datetime.fromisoformat(text) - _EPOCH
    return {"seconds": since.days * 86400 + since.seconds, "nanos": since.microseconds * 1000}


def write_moment(seconds: int, nanos: int) -> str:
    """A moment as documents spell it."""
    at = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_struct(document: Mapping[str, Any]) -> struct_pb2.Struct:
    """A JSON object as a message."""
    return struct_pb2.Struct(fields={name: to_value(value) for name, value in document.items()})


def to_value(value: Any) -> struct_pb2.Value:
    """Any JSON value as a message."""
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, (int, float)):
        return struct_pb2.Value(number_value=value)
    if isinstance(value, str):
        return struct_pb2.Value(string_value=value)
    if isinstance(value, Mapping):
        return struct_pb2.Value(struct_value=to_struct(value))
    if isinstance(value, (list, tuple)):
        return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[to_value(one) for one in value]))
    return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)


# --- back -------------------------------------------------------------------------------------------------------------


def to_document(message: Message) -> Document:
    """What is set of a message, as a document."""
    found = {field.name: _read(field, value) for field, value in message.ListFields()}
    plain, rules = RULES_OF_RETRIES
    if rules in found and message.DESCRIPTOR.full_name == _SPEC:
        found[plain] = found.pop(rules)
    return found


def _read(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    return [_read_one(field, one) for one in value] if field.is_repeated else _read_one(field, value)


def _read_one(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        return word_of(field.enum_type, value)
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return write_moment(value.seconds, value.nanos)
    if name == _STRUCT:
        return read_struct(value)
    return read_value(value) if name == _VALUE else to_document(value)


def word_of(kind: EnumDescriptor, number: int) -> str:
    """The word that documents have for a member of an enum."""
    known = kind.values_by_number.get(number)
    return known.name.removeprefix(_prefix(kind.name)).lower() if known is not None else str(number)


def read_struct(value: struct_pb2.Struct) -> Document:
    """A JSON object of a message."""
    return {name: read_value(one) for name, one in value.fields.items()}


def read_value(value: struct_pb2.Value) -> Any:
    """Any JSON value of a message."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "struct_value":
        return read_struct(value.struct_value)
    if kind == "list_value":
        return [read_value(one) for one in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)
