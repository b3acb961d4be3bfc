"""How a site starts more workers of a provider, and when: what each of them offers, how many, by which command.

A launcher is its provider's: all of its workers are of one kind. Which of its four ways is used says the one key of
them that is given: `slurm`, `kubernetes`, `ssh`, or `command`, which goes for everything else.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from dray.core.model.ids import ID_RULE, is_id

SLURM, KUBERNETES, SSH, COMMAND = "slurm", "kubernetes", "ssh", "command"
WAYS = (SLURM, KUBERNETES, SSH, COMMAND)
# What stands for something in the words of a command. No shell sees them.
KEYS = ("id", "launcher", "join", "handle", "life_s")
# Ids of launches name workers: `NAME-EPOCH-NUMBER`.
LONGEST_NAME = 40
_KEY = re.compile(r"\{\{|\}\}|\{[a-z_]*\}")


class Offered(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one worker of a launcher offers, as it will say itself: what waits is matched with it before it is there.

    `memory` and `vram` (of each card) are bytes, `slots` how many tasks run there at once.
    """

    cpus: float = 1
    memory: int = 0
    gpus: int = 0
    gpu_type: str = ""
    vram: int = 0
    backend: str = ""
    slots: int = 0
    labels: dict[str, str] = {}
    resources: dict[str, int] = {}

    @property
    def spoken_backend(self) -> str:
        """The backend that it will name: of cards nothing else is said of they are NVIDIA's."""
        return self.backend or ("nvidia" if self.gpus else "cpu")


class SlurmSite(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Words for `sbatch`, beside those that follow from the offer."""

    partition: str = ""
    account: str = ""
    args: tuple[str, ...] = ()


class KubernetesSite(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where its Jobs run and of which image; `context` of the kubeconfig, else the one of the pod or the file."""

    image: str
    namespace: str = "default"
    context: str = ""
    service_account: str = ""


class SshSite(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Machines that are reached by ssh, one worker on each, and words for `ssh` itself."""

    hosts: tuple[str, ...]
    args: tuple[str, ...] = ()


class Launch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One launcher. `min` workers are kept, no more than `most` are there at once.

    Work must have waited `wait_s`. A worker that idles for `idle_s` goes, one that has lived `life_s` takes no work
    that lasts longer (0: it may stay). Whoever has not joined within `start_s` of being asked for has failed. No more
    than `per_hour` are asked for within an hour; `budget_per_day` is money, by the provider's own prices (0: no limit).
    `hub`: where its workers find the hub; else where the hub thinks that it is. `program`: dray itself, there.
    """

    offers: Offered = Offered()
    slurm: SlurmSite | None = None
    kubernetes: KubernetesSite | None = None
    ssh: SshSite | None = None
    command: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    min: int = 0
    most: int = 1
    wait_s: float = 60
    idle_s: float = 900
    life_s: float = 0
    start_s: float = 900
    per_hour: float = 60
    budget_per_day: float = 0
    command_s: float = 60
    hub: str = ""
    program: str = "dray"

    @property
    def way(self) -> str:
        """Which of its ways it starts workers by."""
        return next((way for way in WAYS if getattr(self, way)), "")


class Kit(NamedTuple):
    """The readers of values that the check of a policy is made of."""

    group: Any
    listed: Any
    named: Any
    number: Any
    span: Any
    size: Any
    text: Any
    label_name: Any


def launch_reader(kit: Kit) -> Any:
    """The reader of one launcher, made of the readers of a policy."""
    count, texts = kit.number(whole=True), kit.listed(kit.text)
    offers = kit.group(
        Offered,
        {
            "cpus": kit.number(above=True),
            "memory": kit.size,
            "gpus": count,
            "gpu_type": kit.text,
            "vram": kit.size,
            "backend": kit.text,
            "slots": count,
            "labels": kit.named(kit.label_name, kit.text, filled=True),
            "resources": kit.named(kit.label_name, count, filled=True),
        },
        "an offer",
    )
    slurm = {"partition": kit.text, "account": kit.text, "args": texts}
    kubernetes = dict.fromkeys(("image", "namespace", "context", "service_account"), kit.text)
    return kit.group(
        Launch,
        {
            "offers": offers,
            "slurm": kit.group(SlurmSite, slurm, "slurm"),
            "kubernetes": kit.group(KubernetesSite, kubernetes, "kubernetes"),
            "ssh": kit.group(SshSite, {"hosts": texts, "args": texts}, "ssh"),
            "command": texts,
            "end": texts,
            "list": texts,
            "min": kit.number(whole=True, high=10_000),
            "most": kit.number(1, 10_000, whole=True),
            "wait_s": kit.span(),
            "idle_s": kit.span(above=True),
            "life_s": kit.span(),
            "start_s": kit.span(above=True),
            "per_hour": kit.number(above=True),
            "budget_per_day": kit.number(),
            "command_s": kit.span(above=True),
            "hub": kit.text,
            "program": kit.text,
        },
        "a launcher",
    )


def find_faults(name: str, launch: Launch, is_priced: bool) -> list[tuple[str, str]]:
    """What is wrong with a launcher as a whole: below which key, and what."""
    given = [way for way in WAYS if getattr(launch, way)]
    found: list[tuple[str, str]] = []
    if len(given) != 1:
        has = " and ".join(given) or "none of them"
        found.append(("", f"must have exactly one of {', '.join(WAYS)}, and has {has}"))
    if not is_id(name) or len(name) > LONGEST_NAME:
        found.append(
            ("", f"names workers by its provider's name: that must be {ID_RULE}, {LONGEST_NAME} at most")
        )
    if launch.min > launch.most:
        found.append(("min", f"must not be above most ({launch.most}), got {launch.min}"))
    if launch.budget_per_day and not is_priced:
        found.append(("budget_per_day", f"needs a price: give {name} a price_per_hour or price_per_gpu_hour"))
    if (launch.end or launch.list) and not launch.command:
        found.append(
            ("end" if launch.end else "list", "goes with command alone: the other ways know their own")
        )
    if launch.command and not launch.end:
        found.append(("end", "is missing: a worker that cannot be ended would be paid for for ever"))
    if launch.ssh is not None and launch.most > len(set(launch.ssh.hosts)):
        found.append(("most", f"must not be above the number of hosts ({len(set(launch.ssh.hosts))})"))
    for key in ("command", "end", "list"):
        found += [(key, what) for word in getattr(launch, key) for what in _unknown_keys(word)]
    return found


def _unknown_keys(word: str) -> list[str]:
    names = [found[1:-1] for found in _KEY.findall(word) if found not in ("{{", "}}")]
    known = ", ".join(f"{{{key}}}" for key in KEYS)
    return [
        f"{{{name[:32]}}} stands for nothing: there is {known}; a brace is {{{{"
        for name in names
        if name not in KEYS
    ]


def fill(words: tuple[str, ...], values: dict[str, str]) -> tuple[str, ...]:
    """A command with what its keys stand for; each word stays one word, whatever is in it."""
    return tuple(_KEY.sub(lambda found: _stand_for(found[0], values), word) for word in words)


def _stand_for(found: str, values: dict[str, str]) -> str:
    return found[0] if found in ("{{", "}}") else values.get(found[1:-1], found)
