"""Machines that are made up: offers of cards, cores and memory that nobody has, for learning and for trying policies.

Owns what `--fake` may say and what a machine of that kind offers. Tasks on it are real processes on this machine; they
see no card at all. Surprising rule: each machine's name begins with `fake-`, whatever it was called, since names of
workers stand in every list, reason and receipt.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from dray.agent.detect import Detected, shorten_model
from dray.agent.detect.machine import read_labels
from dray.agent.detect.names import FAKE_CARD
from dray.config import AgentConfig, tell_origin
from dray.core.model.capability import BACKENDS, Capability, Device, GpuInfo
from dray.core.model.ids import FAKE_PREFIX, is_id
from dray.core.model.units import GB, parse_bytes
from dray.errors import DrayError, InvalidConfig, InvalidInput

MOST_CARDS, MOST_CORES, MOST_MACHINES = 64, 4096, 1000


def _read_number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not int(text[:9]) <= most:
        raise InvalidInput(f"must be a whole number from 0 to {most}, got {text!r}")
    return int(text)


def _read_backend(text: str) -> str:
    if text not in BACKENDS:
        raise InvalidInput(f"must be one of {', '.join(BACKENDS)}, got {text!r}")
    return text


def _read_type(text: str) -> str:
    if not is_id(text):
        raise InvalidInput(f"must be the short name of a card, such as A100, got {text!r}")
    return text


# What may be said, how it is read, and what holds where it is not said. VRAM counts as makers of cards do, per card.
_WORDS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "gpus": (lambda text: _read_number(text, MOST_CARDS), 0),
    "type": (_read_type, "GPU"),
    "vram": (lambda text: parse_bytes(text, 1000), 16 * GB),
    "cpus": (lambda text: _read_number(text, MOST_CORES), 8),
    "memory": (parse_bytes, 64 << 30),
    "backend": (_read_backend, ""),
}
EXAMPLE = "gpus=4,type=A100,vram=80G,cpus=64,memory=512G"


def read_fake(text: str) -> dict[str, Any]:
    """Read what `--fake` says, every word that is not known and every value that is not understood at once."""
    values = {name: default for name, (_, default) in _WORDS.items()}
    wrong = []
    for part in text.split(","):
        name, mark, value = (word.strip() for word in part.partition("="))
        if not mark or name not in _WORDS:
            wrong.append(f"{part.strip()!r} is none of {', '.join(f'{word}=…' for word in _WORDS)}")
            continue
        try:
            values[name] = _WORDS[name][0](value)
        except DrayError as fault:
            wrong.append(f"{name}: {fault.message}")
    if values["gpus"] and values["backend"] == "cpu":
        wrong.append("backend=cpu has no cards: leave gpus out, or say another backend")
    if wrong:
        raise InvalidConfig(f"--fake {text}: {'; '.join(wrong)} (write it like {EXAMPLE})")
    return values


def pretend(config: AgentConfig) -> Detected:
    """What a fake machine offers, in place of a look at this one."""
    said = read_fake(config.fake)
    count, each, model = said["gpus"], said["vram"], shorten_model(said["type"])
    names = [f"Fake {said['type']}"] * count
    info = GpuInfo(said["type"], count, names, "fake", each * count) if count else None
    capability = Capability(
        gpu_backend=said["backend"] or ("nvidia" if count else "cpu"),
        gpu_count=count,
        gpu_type=model if count else "",
        vram_gb=each * count / GB,
        cpu_count=said["cpus"],
        memory_gb=said["memory"] / GB,
        hostname=os.uname().nodename,
        gpu_info=info,
    )
    devices = [
        Device(
            index=number,
            uuid=f"{FAKE_CARD}{config.name.removeprefix(FAKE_PREFIX)}-{number}",
            model=model,
            vram_bytes=each,
        )
        for number in range(count)
    ]
    return Detected(capability, devices, said["cpus"] or 1, ["this machine is made up"], read_labels())


def list_machines(config: AgentConfig) -> list[AgentConfig]:
    """One configuration for each machine that is to be pretended, under names that say what they are."""
    said = read_fake(config.fake)
    if config.count > MOST_MACHINES:
        raise InvalidConfig(f"--count {config.count}: one process pretends {MOST_MACHINES} machines at most")
    given = tell_origin(config, "name") != "default"
    base = config.name if given else (said["type"].lower() if said["gpus"] else "cpu")
    name = base if base.startswith(FAKE_PREFIX) else f"{FAKE_PREFIX}{base}"
    names = [name] if given and config.count == 1 else [f"{name}-{one + 1}" for one in range(config.count)]
    # Runners are started when calls come: as many as made-up cores, kept ready, would be more than this machine bears.
    runners = max(config.runners, 0)
    labels = config.labels | {"fake": "true"}
    return [
        dataclasses.replace(
            config, name=name, count=1, runners=runners, labels=labels, address=config.address or "127.0.0.1"
        )
        for name in names
    ]
