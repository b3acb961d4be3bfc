"""Bytes that were once written must stay readable, and today's writing must be the newest recorded one.

`vX.Y/` holds what that version wrote: messages in both encodings, facts of the log, records of rows. Every folder is
decoded; only the newest is compared with what the encoders give now. After a deliberate change (a new message, an
appended field) write the folder of the version at hand anew: `python -m tests.golden.record`. A folder of a released
version is never written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tests.golden import hub_samples, record, stored_samples, worker_samples

from dray.core.lifecycle.state.events import Fact, unpack_facts
from dray.core.model.specs.spec import unpack_spec
from dray.wire.messages.hub import HUB_PAYLOADS, Ack, AttemptRef, JobCancel, NoWork, hub_codec
from dray.wire.messages.worker import WORKER_PAYLOADS, worker_codec

HERE = Path(__file__).parent
VERSIONS = sorted(
    (path.name for path in HERE.glob("v*.*")), key=lambda name: [int(part) for part in name[1:].split(".")]
)
SHARED = {("Job", "rest"), ("JobSpec", "node_count")}
QUESTIONS = ("metrics_response", "worker_list_response", "worker_show_response")


def load(version: str, name: str) -> dict[str, Any]:
    return dict(json.loads((HERE / version / f"{name}.json").read_text()))


def recorded(name: str) -> list[tuple[str, str]]:
    return [(version, key) for version in VERSIONS for key in load(version, name)]


def spellings(entry: dict[str, str]) -> list[tuple[bool, bytes]]:
    return [(False, entry["json"].encode()), (True, bytes.fromhex(entry["msgpack"]))]


@pytest.mark.parametrize("name", list(record.SETS))
def test_the_newest_recording_is_what_is_written_today(name: str) -> None:
    assert VERSIONS[-1] == record.VERSION
    assert record.SETS[name]() == load(VERSIONS[-1], name)


@pytest.mark.parametrize(("version", "name"), recorded("worker"))
def test_workers_of_every_version_are_understood(version: str, name: str) -> None:
    sample = worker_samples.SAMPLES[name]
    for binary, frame in spellings(load(version, "worker")[name]):
        codec = worker_codec(binary)
        [envelope] = codec.split(frame)
        assert envelope.type == sample.kind
        assert codec.open(envelope) == sample.read


@pytest.mark.parametrize(("version", "name"), recorded("hub"))
def test_agents_of_today_understand_hubs_of_every_version(version: str, name: str) -> None:
    sent = hub_samples.compose()[name]
    entries = load(version, "hub")[name]
    assert len(entries) == len(sent) >= 1
    for entry, told in zip(entries, sent, strict=True):
        for binary, frame in spellings(entry):
            codec = hub_codec(binary)
            [envelope] = codec.split(frame)
            assert (envelope.type, envelope.error) == (told["type"], told.get("error", ""))
            if envelope.type in QUESTIONS:
                decode = msgspec.msgpack.decode if binary else msgspec.json.decode
                assert decode(envelope.payload) == told["payload"]
            else:
                body = codec.open(envelope)
                assert isinstance(body, HUB_PAYLOADS[envelope.type])


def read(name: str, place: int = 0) -> Any:
    """Give a hub message of the newest recording as an agent reads it."""
    codec = hub_codec(True)
    entry = load(VERSIONS[-1], "hub")[name][place]
    [envelope] = codec.split(bytes.fromhex(entry["msgpack"]))
    return codec.open(envelope)


def test_hub_messages_hold_what_was_decided() -> None:
    assert read("ack_register") == Ack(re="register", session="1", epoch=7, turn=2, heartbeat_s=10.0)
    assert read("ack_heartbeat") == Ack(re="heartbeat", epoch=7, turn=7)
    assert read("ack_job_result") == Ack(re="job_result", epoch=7, turn=10, results={"7-1": "recorded"})
    assert read("ack_job_result_again").results == {"7-1": "duplicate"}
    assert read("no_work") == NoWork()
    assert read("job_cancel") == JobCancel("full", "7-2", "user", 5)
    assert read("ack_register_again").stop == ["7-2"]
    assert read("ack_job_log").log_offsets == {"7-2": {"stdout": 5, "stderr": 0}}
    plain, full, many = (read(f"job_assign_{name}") for name in ("plain", "full", "many"))
    assert (plain.spec.id, plain.spec.command, plain.remaining_time) == ("plain", ["true"], 86_400 * 10**9)
    assert plain.attempt == AttemptRef(1, "7-1", (7 << 40) | 1)
    assert (full.devices, full.remaining_time, full.spec.type) == ([0, 1], 5_400 * 10**9, "service")
    assert full.spec.metadata == {"x": [1, None]}
    assert many.spec.id == "many/0"


@pytest.mark.parametrize(("version", "name"), recorded("facts"))
def test_logs_of_every_version_are_read(version: str, name: str) -> None:
    expected = {type(fact).__name__: fact for fact in stored_samples.FACTS}[name]
    packed = bytes.fromhex(load(version, "facts")[name])
    (got,) = unpack_facts(packed)
    assert got == as_it_was(expected, msgspec.msgpack.decode(packed)[0], tagged=True)


@pytest.mark.parametrize(("version", "name"), recorded("records"))
def test_rows_of_every_version_are_read(version: str, name: str) -> None:
    expected, packed = stored_samples.RECORDS[name], bytes.fromhex(load(version, "records")[name])
    got = unpack_spec(packed) if name == "spec" else msgspec.msgpack.decode(packed, type=type(expected))
    assert got == as_it_was(expected, msgspec.msgpack.decode(packed))


def as_it_was(value: Any, recorded: Any, tagged: bool = False) -> Any:
    """A sample as a version knew it: fields that came later have their defaults."""
    if isinstance(value, tuple | list):
        parts = [as_it_was(part, old) for part, old in zip(value, recorded, strict=True)]
        return type(value)(parts)
    if not isinstance(value, msgspec.Struct):
        return value
    fields, changed = msgspec.structs.fields(value), {}
    for place, field in enumerate(fields):
        known = field.name in recorded if isinstance(recorded, dict) else place + tagged < len(recorded)
        if not known:
            changed[field.name] = default_of(field)
        else:
            old = recorded[field.name if isinstance(recorded, dict) else place + tagged]
            changed[field.name] = as_it_was(getattr(value, field.name), old)
    return type(value)(**changed)


def default_of(field: Any) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def test_nothing_is_left_unrecorded() -> None:
    newest = VERSIONS[-1]
    assert {name.partition(".")[0] for name in load(newest, "worker")} == set(WORKER_PAYLOADS)
    assert set(load(newest, "facts")) == {kind.__name__ for kind in get_args(Fact)}
    assert set(load(newest, "records")) == set(stored_samples.RECORDS)


@pytest.mark.parametrize(
    "sample",
    [*stored_samples.RECORDS.values(), *stored_samples.FACTS],
    ids=lambda value: type(value).__name__,
)
def test_every_field_of_a_sample_differs_from_its_default(sample: Any) -> None:
    """Or its byte could move unseen. A job waits or has ended: `rest` has no other value while it runs."""
    same = [
        field.name
        for field in msgspec.structs.fields(type(sample))
        if field.default is not msgspec.NODEFAULT and getattr(sample, field.name) == field.default
    ]
    assert [name for name in same if (type(sample).__name__, name) not in SHARED] == []


def test_hub_messages_cover_every_type_that_agents_read() -> None:
    told = {one["type"] for sent in hub_samples.compose().values() for one in sent}
    assert told == {*(set(HUB_PAYLOADS) - {"prewarm_hint"}), *QUESTIONS}
