"""Requirement against offer: each rule says why a worker will not do, or nothing.

The one place where a rule has words. `why` asks all of them of a worker. A pass asks those about classes once per kind
of ask; amounts it compares in columns (`remaining`, `survey`), which a property test holds to these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dray.core.lifecycle.state.columns import Offer, pick_cards
from dray.core.model.capability import Device
from dray.core.model.labels import holds, label_of
from dray.core.model.specs.ports import LEASED, amount_of, count_ports, is_port
from dray.core.model.specs.resources import WHOLE, Ask, Rejection
from dray.core.model.units import format_bytes, format_vram


class Room(NamedTuple):
    """One worker as a task sees it: its class, its totals, what is free once the pass's claims are taken off."""

    worker: str
    offer: Offer
    cards: tuple[Device, ...]
    card_used: dict[int, int]
    total_cpu: int
    free_cpu: int
    total_mem: int
    free_mem: int
    slots_total: int
    slots_free: int
    credit: int
    present: bool
    suspect: bool
    draining: bool
    named_total: Mapping[str, int] = MappingProxyType({})
    named_free: Mapping[str, int] = MappingProxyType({})
    not_ready: str = ""
    drained: str = ""
    on_trial: bool = False


def backend(ask: Ask, room: Room) -> Rejection | None:
    if ask.backend and ask.backend != room.offer.backend:
        return Rejection("backend", ask.backend, room.offer.backend, ever=True)
    return None


def device(ask: Ask, room: Room) -> Rejection | None:
    if ask.device_kind and ask.device_kind not in room.offer.kinds:
        return Rejection("device", ask.device_kind, " and ".join(room.offer.kinds), ever=True)
    if ask.device_variant and ask.device_variant not in (*room.offer.gpu_words, room.offer.backend):
        return Rejection("device", ask.device_variant, _words(room), ever=True)
    return None


def gpu_type(ask: Ask, room: Room) -> Rejection | None:
    if ask.gpu_type and ask.gpu_type not in room.offer.gpu_words:
        return Rejection("gpu_type", ask.gpu_type, _words(room), ever=True)
    return None


def labels(ask: Ask, room: Room) -> Rejection | None:
    given = dict(room.offer.labels)
    for condition in ask.require:
        if not holds(condition, given):
            name = label_of(condition)
            have = f"{name}={given[name]}" if name in given else f"no label {name}"
            return Rejection("label", condition, have, ever=True)
    return None


def features(ask: Ask, room: Room) -> Rejection | None:
    for feature in ask.features:
        if feature not in room.offer.features:
            return Rejection(
                "feature", feature, " ".join(room.offer.features) or "base protocol only", ever=True
            )
    return None


def named(ask: Ask, room: Room) -> Rejection | None:
    for name, amount in ask.resources:
        total, free = amount_of(room.named_total, name), amount_of(room.named_free, name)
        if is_port(name) and amount > free:
            return Rejection("port", name, "held by another task", amount=free)
        if name == LEASED:
            if amount > max(free, 0):
                return _ports(amount, total, max(free, 0))
            continue
        if amount > total:
            return Rejection("resource", f"{amount} {name}", f"{total} {name}", ever=True, amount=total)
        if amount > max(free, 0):
            return Rejection("resource", f"{amount} {name}", f"{free} free of {total} {name}", amount=free)
    return None


def _ports(amount: int, total: int, free: int) -> Rejection:
    if amount > total:
        return Rejection("ports", count_ports(amount), f"a range of {total}", ever=True, amount=total)
    return Rejection("ports", count_ports(amount), f"{free} of {total} left", amount=free)


def gpus(ask: Ask, room: Room) -> Rejection | None:
    if ask.gpus == 0:
        return None
    healthy = sum(1 for card in room.cards if card.healthy)
    need = str(ask.gpus) if ask.gpu_milli == WHOLE else f"{ask.gpu_milli / WHOLE:g}"
    if ask.gpus > healthy:
        return Rejection("gpu", need, str(healthy), ever=True, amount=healthy)
    fitting = sum(
        1
        for card in room.cards
        if card.healthy and WHOLE - room.card_used.get(card.index, 0) >= ask.gpu_milli
    )
    if ask.gpus <= fitting:
        return None
    if ask.gpu_milli < WHOLE:
        best = max(WHOLE - room.card_used.get(card.index, 0) for card in room.cards if card.healthy)
        return Rejection("gpu", need, f"{best / WHOLE:g} free of one card", amount=best)
    return Rejection("gpu", need, f"{fitting} free of {healthy}", amount=fitting)


def vram(ask: Ask, room: Room) -> Rejection | None:
    if (
        not (ask.vram_total_bytes or ask.vram_each_bytes)
        or pick_cards(ask, room.cards, room.card_used) is not None
    ):
        return None
    need = format_vram(ask.vram_each_bytes or ask.vram_total_bytes) + (
        " per card" if ask.vram_each_bytes else ""
    )
    best = sorted((card.vram_bytes for card in room.cards if card.healthy), reverse=True)
    amount = best[0] if ask.vram_each_bytes and best else sum(best[: ask.gpus])
    return Rejection(
        "vram", need, format_vram(amount), ever=pick_cards(ask, room.cards, {}) is None, amount=amount
    )


def cpu(ask: Ask, room: Room) -> Rejection | None:
    if ask.cpu_milli <= room.free_cpu or ask.cpu_milli == 0:
        return None
    ever = ask.cpu_milli > room.total_cpu
    total = _cores(room.total_cpu)
    have = total if ever else f"{max(room.free_cpu, 0) / 1000:g} free of {total}"
    return Rejection("cpu", _cores(ask.cpu_milli), have, ever, room.total_cpu if ever else room.free_cpu)


def memory(ask: Ask, room: Room) -> Rejection | None:
    if ask.memory_bytes <= room.free_mem or ask.memory_bytes == 0:
        return None
    ever = ask.memory_bytes > room.total_mem
    total = format_bytes(room.total_mem)
    have = total if ever else f"{format_bytes(room.free_mem)} free of {total}"
    return Rejection(
        "memory", format_bytes(ask.memory_bytes), have, ever, room.total_mem if ever else room.free_mem
    )


def presence(ask: Ask, room: Room) -> Rejection | None:
    if not room.present:
        return Rejection("offline", "a connected worker", "offline")
    if room.draining:
        return Rejection("draining", "a worker that takes work", room.drained or "draining")
    if room.suspect:
        return Rejection("suspect", "a worker that answers", "silent")
    return Rejection("not_ready", "a worker that can start work", room.not_ready) if room.not_ready else None


def slots(ask: Ask, room: Room) -> Rejection | None:
    if room.slots_free > 0:
        return None
    none_at_all = room.present and room.slots_total == 0
    return Rejection("slot", f"{ask.pool} slot", f"0 free of {room.slots_total}", ever=none_at_all)


def credit(ask: Ask, room: Room) -> Rejection | None:
    # Who gets no work for another reason has not asked for any either.
    if room.credit > 0 or presence(ask, room) is not None:
        return None
    have = "on trial after a quarantine, one attempt at a time" if room.on_trial else "not ready"
    return Rejection("credit", "a worker that is ready for work", have)


Filter = Callable[[Ask, Room], Rejection | None]
CLASS_FILTERS: tuple[Filter, ...] = (backend, device, gpu_type, labels, features)
ROOM_FILTERS: tuple[Filter, ...] = (named, gpus, vram, cpu, memory, presence, slots, credit)
FILTERS = CLASS_FILTERS + ROOM_FILTERS


def rejections(ask: Ask, room: Room) -> Iterator[Rejection]:
    """Every reason why this worker will not do now."""
    for rule in FILTERS:
        rejection = rule(ask, room)
        if rejection is not None:
            yield rejection


def fits(ask: Ask, room: Room, rules: tuple[Filter, ...] = FILTERS) -> bool:
    """Whether a task of this ask could go there now."""
    return all(rule(ask, room) is None for rule in rules)


def _words(room: Room) -> str:
    return room.offer.gpu_words[0] if room.offer.gpu_words else "no GPU"


def _cores(milli: int) -> str:
    return f"{milli / 1000:g} core{'' if milli == 1000 else 's'}"
