"""Workers that are not there yet, as the rules of matching see them: those that were asked for, and one more of a kind.

An imagined worker is a room like any other, and the very rules of a pass say what fits there; what it is given is taken
off, so that ten small tasks ask for one machine and not for ten. Knows nothing of who waits or of what may be started.
"""

from __future__ import annotations

from dray.core.lifecycle.providers.endings import needs_ms
from dray.core.lifecycle.state.columns import Offer, offer_of, pick_cards
from dray.core.model.capability import Capability, Device
from dray.core.model.policies.launching import Launch, Offered
from dray.core.model.records.records import Job
from dray.core.model.records.worker import Worker, card_table
from dray.core.model.specs.ports import LEASED
from dray.core.model.specs.resources import Ask
from dray.core.model.units import GB
from dray.core.scheduling.capacity.matching import Room, fits

# What agents of this version say that they can do; a worker that a launcher starts runs one.
FEATURES = (
    "list", "resend", "job_started", "job_log", "shared_gpu", "lease", "gang", "job_progress",
    "calls", "yield", "behind", "ports", "tunnel", "keep", "prewarm",
)  # fmt: skip
MANY = 1 << 20
# So many tasks at once a worker runs that does not say how many: as agents decide, by its cores.
LEAST_SLOTS = 4


class Imagined:
    """One worker that is not there, and what is left of it."""

    def __init__(self, launcher: str, launch: Launch, features: tuple[str, ...] = FEATURES) -> None:
        self.launcher, self.tasks, self._life_ms = launcher, 0, round(launch.life_s * 1000)
        offers = launch.offers
        capability = _capability_of(offers)
        devices = tuple(
            Device(index=index, model=offers.gpu_type, vram_bytes=offers.vram) for index in range(offers.gpus)
        )
        self._cards = card_table(capability, devices)
        self.offer = _offer_of(launcher, offers, capability, self._cards, features)
        self._used: dict[int, int] = {}
        self.total_cpu, self.total_mem = round(offers.cpus * 1000), offers.memory
        self._free_cpu, self._free_mem = self.total_cpu, self.total_mem
        self._named = {**offers.resources, LEASED: MANY}
        self._free_named = dict(self._named)
        self._slots = offers.slots or max(LEAST_SLOTS, round(offers.cpus))

    def fits(self, ask: Ask) -> bool:
        """Whether a task would have room there."""
        return fits(ask, self._room())

    def lasts(self, job: Job) -> bool:
        """Whether a task of a job would be done before its end; of one that does not say, whether there is a while."""
        return not self._life_ms or needs_ms(job) <= self._life_ms

    def take(self, ask: Ask) -> bool:
        """Give a task its room there, if there is any."""
        if not self.fits(ask):
            return False
        for index in pick_cards(ask, self._cards, self._used) or ():
            self._used[index] = self._used.get(index, 0) + ask.gpu_milli
        self._free_cpu -= ask.cpu_milli
        self._free_mem -= ask.memory_bytes
        for name, amount in ask.resources:
            self._free_named[name] = self._free_named.get(name, 0) - amount
        self._slots -= 1
        self.tasks += 1
        return True

    def _room(self) -> Room:
        return Room(
            worker="",
            offer=self.offer,
            cards=self._cards,
            card_used=self._used,
            total_cpu=self.total_cpu,
            free_cpu=self._free_cpu,
            total_mem=self.total_mem,
            free_mem=self._free_mem,
            slots_total=max(1, self._slots),
            slots_free=self._slots,
            credit=1,
            present=True,
            suspect=False,
            draining=False,
            named_total=self._named,
            named_free=self._free_named,
        )


def _capability_of(offers: Offered) -> Capability:
    return Capability(
        gpu_backend=offers.spoken_backend,
        gpu_count=offers.gpus,
        gpu_type=offers.gpu_type,
        vram_gb=offers.vram * offers.gpus / GB,
        cpu_count=offers.cpus,
        memory_gb=offers.memory / GB,
    )


def _offer_of(
    launcher: str,
    offers: Offered,
    capability: Capability,
    cards: tuple[Device, ...],
    features: tuple[str, ...],
) -> Offer:
    labels = {**offers.labels, "provider": launcher}
    worker = Worker(id="", capability=capability, labels=labels, features=features, base=False)
    return offer_of(worker, cards)
