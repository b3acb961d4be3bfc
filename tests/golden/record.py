"""Writes what the encoders give today into the folder of the version at hand: `python -m tests.golden.record`.

To be run when a version first gets a message, a fact or a field, never to make a failing test of an older version pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from tests.golden import hub_samples, stored_samples, worker_samples

from dray.core.lifecycle.state.events import pack_facts
from dray.core.model.specs.spec import JobSpec, pack_spec
from dray.wire.messages.codec import Codec, message
from dray.wire.messages.hub import hub_codec
from dray.wire.messages.worker import worker_codec

HERE = Path(__file__).parent
VERSION = "v0.3"
Recorded = dict[str, Any]


def both(codecs: tuple[Codec, Codec], envelope: dict[str, Any]) -> dict[str, str]:
    """Spell one message in both encodings: JSON as text, msgpack as hex."""
    text, binary = codecs
    return {"json": text.encode([envelope]).decode(), "msgpack": binary.encode([envelope]).hex()}


def worker_messages() -> Recorded:
    codecs = worker_codec(False), worker_codec(True)
    return {
        name: both(codecs, message(sample.kind, sample.written))
        for name, sample in worker_samples.SAMPLES.items()
    }


def hub_messages() -> Recorded:
    codecs = hub_codec(False), hub_codec(True)
    return {name: [both(codecs, one) for one in sent] for name, sent in hub_samples.compose().items()}


def facts() -> Recorded:
    return {type(fact).__name__: pack_facts([fact]).hex() for fact in stored_samples.FACTS}


def pack_record(record: Any) -> bytes:
    """As the store packs it."""
    return pack_spec(record) if isinstance(record, JobSpec) else msgspec.msgpack.encode(record)


def records() -> Recorded:
    return {name: pack_record(record).hex() for name, record in stored_samples.RECORDS.items()}


SETS = {"worker": worker_messages, "hub": hub_messages, "facts": facts, "records": records}


def write() -> None:
    folder = HERE / VERSION
    folder.mkdir(exist_ok=True)
    for name, make in SETS.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    write()
