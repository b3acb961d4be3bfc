"""Workers seen through a pass: columns plus an overlay of what the pass has claimed so far. Never a copy.

Owns what is left of a worker and whether a task fits into it, cards included. The surprising rule: `fit` asks numbers
and guards alone; whether a worker is of the right class is found once per kind of ask, by the very rules of `matching`.
A dry run is the same with the overlay thrown away.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from dray.core.lifecycle.state.columns import Columns, Numbers, name_column, pick_cards
from dray.core.lifecycle.state.state import State
from dray.core.model.records.worker import usable_credit, why_not_ready
from dray.core.model.specs.ports import amount_of, amount_unsaid, is_port
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.matching import CLASS_FILTERS, Room, fits
from dray.core.scheduling.capacity.memory import ClassKey, Mask, memory_of

Rows = np.ndarray[Any, np.dtype[np.intp]]
Devices = tuple[int, ...]
MOST_CLASSES = 10_000


class Guard(Protocol):
    """Stands before a worker that is kept for somebody: asked only once a task would fit."""

    def admits(self, ask: Ask, room: Room, devices: Devices, owner: str) -> bool:
        """Whether this job's task may take the room all the same."""

    def crowd(self, used: dict[int, int], owner: str) -> dict[int, int]:
        """What is used of each card, that which is kept from this job counted too."""


class Left:
    """What is left of one worker, the pass's claims taken off."""

    __slots__ = ("batch", "cards", "cpu", "credit", "memory", "named", "owned", "service", "used")

    def __init__(self, columns: Columns, row: int) -> None:
        # Read in place: of all that a pass does for one task this is done most.
        of = columns.cells
        self.cpu = of["total_cpu"][row] - of["used_cpu"][row]
        self.memory = of["total_mem"][row] - of["used_mem"][row]
        self.batch = _free_slots(of["batch_total"][row], of["batch_in_use"][row], of["batch_live"][row])
        self.service = _free_slots(
            of["service_total"][row], of["service_in_use"][row], of["service_live"][row]
        )
        self.credit = of["credit"][row] if of["open"][row] else 0
        self.cards = columns.cards[row]
        self.used = columns.card_used[row]
        self.owned = False
        self.named: dict[str, int] | None = None

    def slots(self, pool: str) -> int:
        """Free slots of a pool."""
        return self.batch if pool == "batch" else self.service

    def holds(self, ask: Ask) -> bool:
        """Whether everything but cards and named resources suffices: the cheap half of the question."""
        return (
            self.credit > 0
            and (self.batch if ask.pool == "batch" else self.service) > 0
            and (ask.cpu_milli <= self.cpu or not ask.cpu_milli)
            and (ask.memory_bytes <= self.memory or not ask.memory_bytes)
        )

    def times(self, ask: Ask, most: int) -> int:
        """How many tasks that want no cards fit side by side."""
        count = min(most, self.credit, self.batch if ask.pool == "batch" else self.service)
        if ask.cpu_milli:
            count = min(count, self.cpu // ask.cpu_milli)
        if ask.memory_bytes:
            count = min(count, self.memory // ask.memory_bytes)
        return count


def _free_slots(total: int, in_use: int, live: int) -> int:
    """How many tasks may still come: none while the worker says it is full, else up to what the hub holds there.

    Not `total - max(in_use, live)`: of two claims in one pass the second would be refused, and fit once the first is
    folded in, with nobody to wake it.
    """
    return total - live if in_use < total else 0


class Rooms:
    """The offer side of one pass.

    `claimed` lists rows in the order of claims, `spent` those of them that have no slot or credit left: a walk
    remembers how far it has read. `owed`: what is to be taken of room that is not there yet.
    `worths`: what a job would come to on each worker, as found in this pass.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.columns, self.memory = state.columns, memory_of(state)
        self.guards: dict[int, Guard] = {}
        self.claimed: list[int] = []
        self.spent: list[int] = []
        self.lefts: dict[int, Left] = {}
        self.owed: dict[int, list[tuple[Ask, Devices]]] = {}
        self.worths: dict[object, object] = {}
        self._usable: dict[str, Mask] = {}
        self._free: dict[str, Numbers] = {}

    def left(self, row: int) -> Left:
        """What is left of a worker now."""
        left = self.lefts.get(row)
        if left is None:
            left = self.lefts[row] = Left(self.columns, row)
        return left

    def room(self, row: int, pool: str) -> Room:
        """One worker as the rules see it, after the claims."""
        columns, get = self.columns, self.columns.get
        worker_id, left = columns.worker_of[row], self.left(row)
        presence, worker = self._state.presence[worker_id], self._state.workers[worker_id]
        return Room(
            worker=worker_id,
            offer=columns.offers[get("offer", row)],
            cards=columns.cards[row],
            card_used=left.used,
            total_cpu=get("total_cpu", row),
            free_cpu=left.cpu,
            total_mem=get("total_mem", row),
            free_mem=left.memory,
            slots_total=get(f"{pool}_total", row),
            slots_free=left.slots(pool),
            credit=usable_credit(worker, presence)
            - (get("credit", row) - left.credit if get("open", row) else 0),
            present=bool(presence.session) and not worker.silent,
            suspect=presence.suspect,
            draining=worker.draining,
            drained=f"{worker.drain_word}: {worker.drain_reason}"
            if worker.draining and worker.drain_reason
            else "",
            on_trial=worker.on_trial,
            named_total=columns.named_total[row],
            named_free=self._named(row, left),
            not_ready=why_not_ready(presence, self._state.now_ms),
        )

    def fit(self, row: int, ask: Ask, owner: str = "") -> Devices | None:
        """The cards a task of this ask would get on a worker of its class; None where it does not fit now."""
        left = self.left(row)
        if not left.holds(ask):
            return None
        if ask.resources:
            free = self._named(row, left)
            if any(amount > max(amount_of(free, name), 0) for name, amount in ask.resources):
                return None
        devices: Devices | None = ()
        if ask.gpus:
            devices = pick_cards(ask, left.cards, left.used)
        if devices is None or not self.guards:
            return devices
        guard = self.guards.get(row)
        if guard is None or guard.admits(ask, self.room(row, ask.pool), devices, owner):
            return devices
        return self._other_cards(row, ask, owner, guard) if ask.gpus else None

    def fit_cards(self, row: int, ask: Ask, devices: Devices) -> Devices | None:
        """These very cards where they are there now, else others; None where it does not fit. No guard is asked."""
        left = self.left(row)
        if not left.holds(ask):
            return None
        free = self._named(row, left) if ask.resources else {}
        if any(amount > max(amount_of(free, name), 0) for name, amount in ask.resources):
            return None
        kept = pick_cards(ask, tuple(card for card in left.cards if card.index in devices), left.used)
        return kept if kept is not None else pick_cards(ask, left.cards, left.used)

    def clip(self, row: int, ask: Ask, devices: Devices) -> tuple[Ask, Devices]:
        """The part of an ask with these cards that a worker has now."""
        left = self.left(row)
        free = self._named(row, left) if ask.resources else {}
        cards = tuple(index for index in devices if left.used.get(index, 0) + ask.gpu_milli <= WHOLE)
        part = msgspec.structs.replace(
            ask,
            cpu_milli=min(ask.cpu_milli, max(0, left.cpu)),
            memory_bytes=min(ask.memory_bytes, max(0, left.memory)),
            resources=tuple(
                (name, min(amount, max(0, amount_of(free, name)))) for name, amount in ask.resources
            ),
        )
        return part, cards

    def _other_cards(self, row: int, ask: Ask, owner: str, guard: Guard) -> Devices | None:
        """Cards beside those that are kept: the best ones may be refused where others would do."""
        left = self.left(row)
        devices = pick_cards(ask, left.cards, guard.crowd(left.used, owner))
        if devices is None or not guard.admits(ask, self.room(row, ask.pool), devices, owner):
            return None
        return devices

    def claim(self, row: int, ask: Ask, devices: Devices, times: int = 1) -> None:
        """Take what one task needs (or several without cards) for the rest of this pass."""
        left = self.left(row)
        left.cpu -= ask.cpu_milli * times
        left.memory -= ask.memory_bytes * times
        left.credit -= times
        if ask.pool == "batch":
            left.batch -= times
        else:
            left.service -= times
        if devices:
            if not left.owned:
                left.used, left.owned = dict(left.used), True
            for index in devices:
                left.used[index] = left.used.get(index, 0) + ask.gpu_milli
        if ask.resources:
            left.named = named = self._named(row, left)
            for name, amount in ask.resources:
                named[name] = amount_of(named, name) - amount * times
        self.claimed.append(row)
        if not left.credit or not (left.batch if ask.pool == "batch" else left.service):
            self.spent.append(row)

    def owe(self, row: int, ask: Ask, devices: Devices) -> None:
        """Note what somebody will take on a worker as soon as others leave it, on top of what is claimed.

        It counts for whoever reckons with their leaving too.
        """
        self.owed.setdefault(row, []).append((ask, devices))

    def _named(self, row: int, left: Left) -> dict[str, int]:
        if left.named is not None:
            return left.named
        used = self.columns.named_used[row]
        free = {name: total - used.get(name, 0) for name, total in self.columns.named_total[row].items()}
        return free | {name: 1 - taken for name, taken in used.items() if is_port(name)} if used else free

    # --- scans --------------------------------------------------------------------------------------------------------

    def candidates(self, ask: Ask) -> Rows:
        """Rows that may fit, by the columns alone (claims are looked at later)."""
        return np.flatnonzero(self.mask(ask))

    def mask(self, ask: Ask) -> Mask:
        """The same as a mask over all rows."""
        view, count = self.columns.view, self.columns.count
        classes = self.class_mask(ask)
        mask = self.usable(ask.pool)
        mask = mask.copy() if classes.all() else mask & classes[view["offer"][:count]]
        if ask.cpu_milli:
            mask &= self.free("cpu") >= ask.cpu_milli
        if ask.memory_bytes:
            mask &= self.free("mem") >= ask.memory_bytes
        if ask.gpus:
            mask &= self._enough_cards(ask)
        for name, amount in ask.resources:
            if amount > 0:
                column = view.get(name_column(name))
                if column is not None:
                    mask &= column[:count] >= amount
                elif amount > amount_unsaid(name):
                    mask &= np.False_
        return mask

    def usable(self, pool: str) -> Mask:
        """Workers that may get work of a pool at all now: found once per pass."""
        mask = self._usable.get(pool)
        if mask is None:
            view, count = self.columns.view, self.columns.count
            taken = np.maximum(view[f"{pool}_in_use"][:count], view[f"{pool}_live"][:count])
            mask = (view["open"][:count] > 0) & (view["credit"][:count] > 0)
            mask &= view[f"{pool}_total"][:count] > taken
            self._usable[pool] = mask
        return mask

    def free(self, what: str) -> Numbers:
        """Free cpu or memory of every worker before this pass's claims."""
        found = self._free.get(what)
        if found is None:
            view, count = self.columns.view, self.columns.count
            found = self._free[what] = view[f"total_{what}"][:count] - view[f"used_{what}"][:count]
        return found

    def _enough_cards(self, ask: Ask) -> Mask:
        columns, count = self.columns, self.columns.count
        least = ask.vram_each_bytes
        if ask.gpu_milli < WHOLE:
            least = max(least, ask.vram_total_bytes)
        if not least:
            if ask.gpu_milli < WHOLE:
                return columns.view["best_milli"][:count] >= ask.gpu_milli
            return columns.view["free_gpu"][:count] >= ask.gpus
        good = columns.device_free[:count] >= ask.gpu_milli
        good &= columns.device_vram[:count] >= least
        enough: Mask = np.count_nonzero(good, axis=1) >= ask.gpus
        return enough

    def class_mask(self, ask: Ask) -> Mask:
        """Which classes of worker match an ask at all; kept from pass to pass."""
        classes, offers = self.memory.classes, self.columns.offers
        key = class_key(ask)
        mask = classes.get(key)
        if mask is None or len(mask) < len(offers):
            if len(classes) >= MOST_CLASSES:
                classes.clear()
            verdicts = [matches_offer(ask, self.columns, index) for index in range(len(offers))]
            mask = classes[key] = np.array(verdicts, dtype=np.bool_)
        return mask


def class_key(ask: Ask) -> ClassKey:
    """The part of an ask that is matched with a class of worker."""
    return (ask.backend, ask.device_kind, ask.device_variant, ask.gpu_type, ask.require, ask.features)


def matches_offer(ask: Ask, columns: Columns, offer: int) -> bool:
    """Whether a class of worker suits an ask, numbers apart."""
    room = Room("", columns.offers[offer], (), {}, 0, 0, 0, 0, 0, 0, 0, True, False, False)
    return fits(ask, room, CLASS_FILTERS)
