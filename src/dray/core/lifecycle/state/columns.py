"""Workers as columns of integers, kept up to date by `apply` so that no pass rebuilds anything.

A cache: every number here can be derived from the worker, its presence and its live attempts, and the invariants
compare the two. Columns are `array.array` (Python ints in and out) with numpy views for the scans: numpy scalars
must not creep into ids and sums.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np

from dray.core.model.capability import Device
from dray.core.model.records.worker import Presence, Worker, card_table, usable_credit
from dray.core.model.specs.ports import LEASED, amount_of, amount_unsaid, is_port
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.model.units import GB

NAMES = (
    "total_cpu",
    "used_cpu",
    "total_mem",
    "used_mem",
    "total_gpu",
    "free_gpu",
    "free_milli",
    "best_milli",
    "batch_total",
    "batch_in_use",
    "batch_live",
    "service_total",
    "service_in_use",
    "service_live",
    "credit",
    "open",
    "offer",
    "rank",
)
MOST_CHANGES = 1 << 16
_LIVE = {"batch": "batch_live", "service": "service_live"}
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Offer(msgspec.Struct, frozen=True):
    """What all workers of one class share: everything a shape is matched with that is not a number."""

    backend: str
    kinds: tuple[str, ...]
    gpu_words: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    features: tuple[str, ...]


class Columns:
    """One row per worker. Rows of forgotten workers are reused. Others read `cells`, and write nothing.

    `device_free` and `device_vram` have one column per card, in the order of `cards`; a card that is not there or not
    healthy has 0 free and VRAM -1. `changes` lists the rows that changed in any way, for caches of scores that
    remember how far they have read; `change` counts those of them whose room did; `roster` counts how often any worker
    came, went or registered as another than before.
    """

    def __init__(self) -> None:
        self.capacity = 0
        self.count = 0
        self.row_of: dict[str, int] = {}
        self.worker_of: list[str] = []
        self.cards: list[tuple[Device, ...]] = []
        self.card_used: list[dict[int, int]] = []
        self.offers: list[Offer] = []
        self.named_total: list[dict[str, int]] = []
        self.named_used: list[dict[str, int]] = []
        self.named: dict[str, None] = {}
        self._port_holders: dict[str, int] = {}
        self.changes: list[int] = []
        self.changes_dropped = 0
        self._roomless = 0
        self.roster = 0
        self._inverses: dict[str, tuple[int, np.ndarray[Any, np.dtype[np.float64]]]] = {}
        self.roomier: dict[int, None] = {}
        self.ranks_stale = False
        self._offer_index: dict[Offer, int] = {}
        self._free_rows: list[int] = []
        self.cells: dict[str, array[int]] = {}
        self.view: dict[str, Numbers] = {}
        self.device_free: Numbers = np.zeros((0, 0), dtype=np.int64)
        self.device_vram: Numbers = np.zeros((0, 0), dtype=np.int64)
        self._grow(16)

    def get(self, name: str, row: int) -> int:
        """Read one cell as a plain int."""
        return self.cells[name][row]

    def put_credit(self, row: int, credit: int) -> None:
        """Follow the credit of a worker that was given a task just now: `hold` has told of the change."""
        self.cells["credit"][row] = credit

    def update(self, worker: Worker, presence: Presence) -> int:
        """Bring a worker's row in line with what it registered; what its attempts hold stays."""
        row = self.row_of.get(worker.id)
        if row is None:
            row = self._new_row(worker.id)
        cards = card_table(worker.capability, worker.devices)
        self.cards[row] = cards
        capability = worker.capability
        facts = {
            "total_cpu": round(capability.cpu_count * 1000),
            "total_mem": round(capability.memory_gb * GB),
            "total_gpu": sum(1 for card in cards if card.healthy),
            "offer": self._offer(offer_of(worker, cards)),
        }
        for name, value in facts.items():
            if self.cells[name][row] != value:
                self.cells[name][row] = value
                self.roster += 1
        self.named_total[row] = {name: amount for name, amount in worker.resources.items() if amount > 0}
        if worker.ports >= 0:
            self.named_total[row][LEASED] = worker.ports
        self._lay_out(row)
        self._count_cards(row)
        self._count_named(row)
        self._note_change(row)
        self.set_presence(row, worker, presence)
        return row

    def set_presence(self, row: int, worker: Worker, presence: Presence) -> None:
        """Follow what a worker's session says: credit, slots, and whether it may get work at all."""
        slots, data = presence.slots, self.cells
        self._roomless += 1
        self._note_change(row)
        data["batch_total"][row] = slots.batch_total
        data["batch_in_use"][row] = slots.batch_in_use
        data["service_total"][row] = slots.service_total
        data["service_in_use"][row] = slots.service_in_use
        data["credit"][row] = usable_credit(worker, presence)
        away = presence.suspect or worker.draining or worker.silent
        unable = presence.paused or bool(presence.not_ready)
        data["open"][row] = int(bool(presence.session) and not (away or unable))
        self.roomier[row] = None

    def hold(self, worker_id: str, ask: Ask, devices: tuple[int, ...], sign: int) -> None:
        """Book (sign 1) or give back (sign -1) what one attempt holds."""
        row = self.row_of[worker_id]
        data = self.cells
        data["used_cpu"][row] += sign * ask.cpu_milli
        data["used_mem"][row] += sign * ask.memory_bytes
        data[_LIVE[ask.pool]][row] += sign
        if devices:
            used = self.card_used[row]
            for index in devices:
                _add(used, index, sign * ask.gpu_milli)
            self._count_cards(row)
        if ask.resources:
            for name, amount in ask.resources:
                _add(self.named_used[row], name, sign * amount)
                if is_port(name):
                    _add(self._port_holders, name, sign * amount)
            self._count_named(row)
            self._drop_free_ports(ask)
        self._note_change(row)
        if sign < 0:
            self.roomier[row] = None

    def lend(self, worker_id: str, ask: Ask, sign: int) -> None:
        """Give up the slot and the cores of an attempt that yields (sign 1), or take them back (sign -1)."""
        row, data = self.row_of[worker_id], self.cells
        data["used_cpu"][row] -= sign * ask.cpu_milli
        data[_LIVE[ask.pool]][row] -= sign
        self._note_change(row)
        self.roomier[row] = None

    def forget(self, worker_id: str) -> None:
        """Free a row for the next new worker."""
        self.roster += 1
        row = self.row_of.pop(worker_id)
        for column in self.cells.values():
            column[row] = 0
        self.worker_of[row], self.cards[row], self.card_used[row] = "", (), {}
        for name, amount in self.named_used[row].items():
            if is_port(name):
                _add(self._port_holders, name, -amount)
        self.named_total[row], self.named_used[row] = {}, {}
        self._lay_out(row)
        self._count_named(row)
        self._note_change(row)
        self.roomier.pop(row, None)
        self._free_rows.append(row)

    def inverse(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One divided by a total, of every worker; 0 where there is none. Kept: totals seldom change."""
        kept = self._inverses.get(name)
        if kept is None or kept[0] != self.roster:
            total = self.view[name][: self.count]
            kept = self._inverses[name] = self.roster, np.where(total > 0, 1.0 / np.maximum(total, 1), 0.0)
        return kept[1]

    def refresh_ranks(self) -> None:
        """Number the rows in order of worker id, so that ties end in the id."""
        if self.ranks_stale:
            for rank, worker_id in enumerate(sorted(self.row_of)):
                self.cells["rank"][self.row_of[worker_id]] = rank
            self.ranks_stale = False

    def _count_cards(self, row: int) -> None:
        used, free, whole = self.card_used[row], self.device_free, 0
        left = [WHOLE - used.get(card.index, 0) if card.healthy else 0 for card in self.cards[row]]
        for place, milli in enumerate(left):
            free[row, place] = milli
            whole += milli == WHOLE
        data = self.cells
        data["free_gpu"][row] = whole
        data["free_milli"][row] = sum(left)
        data["best_milli"][row] = max(left, default=0)

    def _count_named(self, row: int) -> None:
        total, used = self.named_total[row], self.named_used[row]
        for name in (*total, *used):
            if name not in self.named and (name in total or is_port(name)):
                self.named[name] = None
                self._add_column(name_column(name), self.capacity)
                self.view[name_column(name)][:] = amount_unsaid(name)
        for name in self.named:
            self.cells[name_column(name)][row] = amount_of(total, name) - used.get(name, 0)

    def _drop_free_ports(self, ask: Ask) -> None:
        """Ports that nobody holds any more need no column: each may be a different one."""
        for name, _ in ask.resources:
            if is_port(name) and name in self.named and name not in self._port_holders:
                del self.named[name], self.view[name_column(name)], self.cells[name_column(name)]

    def changes_since(self, read: int) -> list[int] | None:
        """The rows that changed since `changes_read` was `read`; None where that is too long ago to tell."""
        first = read - self.changes_dropped
        return None if first < 0 else self.changes[first:]

    @property
    def changes_read(self) -> int:
        """How many changes were listed so far, for whoever has read them all."""
        return self.changes_dropped + len(self.changes)

    @property
    def change(self) -> int:
        """How often the room of any worker has changed so far."""
        return self.changes_read - self._roomless

    def _note_change(self, row: int) -> None:
        changes = self.changes
        if len(changes) >= MOST_CHANGES:
            self.changes_dropped += len(changes)
            changes.clear()
        changes.append(row)

    def _lay_out(self, row: int) -> None:
        """Make a row's cards stand where the device columns expect them."""
        cards = self.cards[row]
        missing = len(cards) - self.device_free.shape[1]
        if missing > 0:
            shape = ((0, 0), (0, missing))
            self.device_free = np.pad(self.device_free, shape)
            self.device_vram = np.pad(self.device_vram, shape, constant_values=-1)
        self.device_free[row], self.device_vram[row] = 0, -1
        for place, card in enumerate(cards):
            if card.healthy:
                self.device_vram[row, place] = card.vram_bytes

    def _offer(self, offer: Offer) -> int:
        index = self._offer_index.get(offer)
        if index is None:
            index = self._offer_index[offer] = len(self.offers)
            self.offers.append(offer)
        return index

    def _new_row(self, worker_id: str) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self.worker_of[row], self.card_used[row] = worker_id, {}
            self.named_total[row], self.named_used[row] = {}, {}
        else:
            if self.count == self.capacity:
                self._grow(self.capacity * 2)
            row, self.count = self.count, self.count + 1
            self.worker_of.append(worker_id)
            self.cards.append(())
            self.card_used.append({})
            self.named_total.append({})
            self.named_used.append({})
        self.row_of[worker_id] = row
        self.roster += 1
        self.ranks_stale = True
        return row

    def _grow(self, capacity: int) -> None:
        for name in (*NAMES, *map(name_column, self.named)):
            self._add_column(name, capacity)
        more = ((0, capacity - self.capacity), (0, 0))
        self.device_free = np.pad(self.device_free, more)
        self.device_vram = np.pad(self.device_vram, more, constant_values=-1)
        self.capacity = capacity

    def _add_column(self, name: str, capacity: int) -> None:
        old = self.cells.get(name, array("q"))
        self.cells[name] = old + array("q", bytes(8 * (capacity - len(old))))
        self.view[name] = np.frombuffer(self.cells[name], dtype=np.int64)


def name_column(name: str) -> str:
    """The column that says how much of a named resource is free."""
    return f"named {name}"


def _add(used: dict[Any, int], key: int | str, amount: int) -> None:
    left = used.get(key, 0) + amount
    if left:
        used[key] = left
    else:
        used.pop(key, None)


def kind_of(offer: Offer) -> str:
    """What a class of worker computes on, in one word."""
    return offer.gpu_words[0] if offer.gpu_words else "cpu"


def offer_of(worker: Worker, cards: tuple[Device, ...]) -> Offer:
    """Read the class of a worker: backend, device kinds, words its GPU type may be called by, labels, features."""
    capability = worker.capability
    backend = capability.gpu_backend or "cpu"
    has_gpu = capability.gpu_count > 0
    info = capability.gpu_info
    names = [capability.gpu_type, info.gpu_type if info else "", *((info.devices if info else None) or ())]
    names += [card.model for card in cards]
    words: dict[str, None] = {}
    for name in names if has_gpu else ():
        lowered = name.lower()
        words[lowered] = None
        for word in (*lowered.split(), *lowered.replace("-", " ").replace("_", " ").split()):
            words[word.strip("()[],;")] = None
    words.pop("", None)
    kinds = ("cpu", *(("tpu",) if "tpu" in words else ("gpu",) if has_gpu else ()))
    return Offer(
        backend=backend,
        kinds=kinds,
        gpu_words=tuple(words),
        labels=tuple(sorted(worker.all_labels.items())),
        features=tuple(sorted(worker.features)),
    )


def pick_cards(ask: Ask, cards: tuple[Device, ...], used: dict[int, int]) -> tuple[int, ...] | None:
    """Choose the cards a task would get, smallest that suffice first; None where they are not there.

    A shared ask takes the card with the least room that still holds it, so that whole cards stay whole.
    """
    if ask.gpus == 0:
        return ()
    room = [
        (card.vram_bytes, WHOLE - used.get(card.index, 0), card.index)
        for card in cards
        if card.healthy
        and WHOLE - used.get(card.index, 0) >= ask.gpu_milli
        and card.vram_bytes >= ask.vram_each_bytes
    ]
    if ask.gpu_milli < WHOLE:
        fitting = [(left, vram, index) for vram, left, index in room if vram >= ask.vram_total_bytes]
        return (min(fitting)[2],) if fitting else None
    room = sorted(entry for entry in room if entry[1] == WHOLE)
    for first in range(len(room) - ask.gpus + 1):
        chosen = room[first : first + ask.gpus]
        if sum(vram for vram, _, _ in chosen) >= ask.vram_total_bytes:
            return tuple(sorted(index for _, _, index in chosen))
    return None
