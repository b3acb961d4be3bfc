"""A worker as the hub knows it: what it registered, and what it said since.

`Worker` is durable. `Presence` is made of signals: it is empty after a restart and takes no part in replay equality.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.model.capability import Capability, Device, Slots
from dray.core.model.units import GB, format_seconds


class Worker(msgspec.Struct, kw_only=True, array_like=True):
    """One machine as it registered. Without `features` it is a base-only peer and gets nothing outside base. `owner` is
    the id of the token that it registered with: nobody else may speak for it.

    `given` are labels that people gave it, before its own. `drain_until_ms` (wall time, 0: until it is resumed) and
    what stands beside it belong to `draining`. `gone_at_ms`: since when it is away. `emptying`: what
    runs there is moved elsewhere. `faults`: how often in a row it was
    found faulty; drained meanwhile it is in quarantine, else on `trial`, by that attempt or by the next. `ports`: how
    many its range has; below 0: it does not say, and nobody counts. `ends_at_ms` (wall time): when it ends, the sooner
    of what it said itself and what others say of it; 0: nobody knows.
    """

    id: str
    capability: Capability = Capability()
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    slots: Slots = Slots()
    features: tuple[str, ...] = ()
    base: bool = True
    address: str = ""
    incarnation: str = ""
    journal_id: str = ""
    boot_id: str = ""
    draining: bool = False
    silent: bool = False
    left: bool = False
    quarantined: tuple[str, ...] = ()
    registered_at_ms: int = 0
    resources: dict[str, int] = {}
    owner: str = ""
    given: dict[str, str] = {}
    drained_by: str = ""
    drain_reason: str = ""
    drain_until_ms: int = 0
    gone_at_ms: int = 0
    faults: int = 0
    trial: str = ""
    ports: int = -1
    ends_at_ms: int = 0
    ends_said_ms: int = 0
    ends_given_ms: int = 0
    emptying: bool = False
    version: str = ""

    @property
    def drain_word(self) -> str:
        """What it is while it gets no work: drained by somebody, or by the hub."""
        return "quarantined" if self.faults else "draining"

    @property
    def on_trial(self) -> bool:
        """Whether it gets one attempt at a time to show that it is sound."""
        return self.faults > 0 and not self.draining

    @property
    def all_labels(self) -> dict[str, str]:
        """What it is called by: what people say of it counts before what it says itself."""
        return self.labels | self.given if self.given else self.labels

    def is_stale(self, at_ms: int, after_ms: int) -> bool:
        """Whether it has been away for so long that lists leave it out."""
        return bool(self.gone_at_ms) and at_ms - self.gone_at_ms > after_ms


class Presence(msgspec.Struct, kw_only=True):
    """The live side of a worker: its session, when it was last heard, how much work it `asked` for, and what is left of
    that.

    `told` counts what it said of its tasks' progress since `told_since_ms`; `flooding`: more than its share. `resuming`
    counts its attempts that had yielded and wait to go on. `not_ready`: why it cannot start work, by its own word.
    `refusals` counts the starts in a row that came to nothing there; while `paused`, until `paused_until_ms`, it gets
    none for that.
    """

    session: int = 0
    seen_ms: int = 0
    seen_at_ms: int = 0
    credit: int = 0
    asked: int = 0
    slots: Slots = Slots()
    suspect: bool = False
    takeovers: tuple[int, ...] = ()
    refused_until_ms: int = 0
    loss_timer_ms: int = 0
    told: int = 0
    told_since_ms: int = 0
    flooding: bool = False
    resuming: int = 0
    not_ready: str = ""
    refusals: int = 0
    refused_for: str = ""
    paused: bool = False
    paused_until_ms: int = 0


class ResumedSession(NamedTuple):
    """A worker's socket that stayed open while the lead changed, or its way to the leader broke: the registration that
    it stands for, and how much it had asked for that it was not told of yet.
    """

    worker: str
    session: int
    incarnation: str
    registered_at_ms: int
    credit: int
    slots: Slots


def usable_credit(worker: Worker, presence: Presence) -> int:
    """How many attempts a worker may be given now of what it asked for."""
    if presence.resuming:
        # While somebody waits to go on where it yielded, nobody new comes in.
        return 0
    if worker.on_trial:
        return 0 if worker.trial else min(1, presence.credit)
    return presence.credit


def why_not_ready(presence: Presence, now_ms: int) -> str:
    """Why a worker that is there gets no work: it says so itself, or started nothing of what it was given."""
    if presence.not_ready or not presence.paused:
        return presence.not_ready
    left = format_seconds(max(1, -(-(presence.paused_until_ms - now_ms) // 1000)))
    times = f"{presence.refusals} times in a row" if presence.refusals > 1 else "the last time"
    why = f" ({presence.refused_for})" if presence.refused_for else ""
    return f"did not start what it was given {times}{why}, gets work again in {left}"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The last a running task said of itself; None and "" where it did not say. A signal too."""

    step: int | None = None
    fraction: float | None = None
    note: str = ""
    at_ms: int = 0


class CardUse(NamedTuple):
    """One card of an attempt as it was last looked at: the busy share of its time, its memory, how long it idles."""

    card: int
    share: float
    memory_bytes: int
    idle_s: float


class Use(NamedTuple):
    """What an attempt that runs has used so far, as its worker sees it at `at_ms`. A signal: its end brings the sum."""

    cpu_s: float = 0
    max_rss_bytes: int = 0
    gpu_s: float = 0
    gpu_seen_s: float = 0
    max_gpu_bytes: int = 0
    cards: tuple[CardUse, ...] = ()
    at_ms: int = 0


def card_table(capability: Capability, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Give a worker's cards; a base-only worker is `gpu_count` equal anonymous cards sharing `vram_gb`."""
    if capability.gpu_count <= 0:
        return ()
    if devices:
        return devices[: capability.gpu_count]
    each = round(capability.vram_gb * GB / capability.gpu_count)
    model = capability.gpu_type
    return tuple(Device(index=index, model=model, vram_bytes=each) for index in range(capability.gpu_count))
