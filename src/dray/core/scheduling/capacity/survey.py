"""Every rule asked of every worker at once, by columns: how many workers each rule refuses, and who comes closest.

Counts only: the words for a "no" come from the very filters of a pass, asked of the worker that comes closest. A
survey reads one moment and is thrown away; scans of it share what does not depend on the ask. The surprising rule: it
must refuse a worker by exactly those rules by which `matching` would, and a property test holds it to that.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.providers.endings import ends_ms
from dray.core.lifecycle.state.columns import Numbers, name_column
from dray.core.lifecycle.state.state import State
from dray.core.model.specs.ports import LEASED, amount_of, amount_unsaid, is_port
from dray.core.model.specs.resources import WHOLE, Ask, Rejection
from dray.core.model.units import format_seconds
from dray.core.scheduling.capacity.matching import CLASS_FILTERS, Room, rejections
from dray.core.scheduling.capacity.memory import ClassKey, Mask
from dray.core.scheduling.capacity.remaining import Rooms, Rows, class_key

Kind = tuple[str, bool]


class Standing:
    """How workers stand whatever is asked of them, by pool."""

    def __init__(self, state: State, pool: str) -> None:
        columns = state.columns
        view, count = columns.view, columns.count
        self.refused: dict[Kind, Mask] = {}
        shut = np.flatnonzero(view["open"][:count] == 0).tolist()
        kinds = ("offline", "draining", "suspect", "not_ready")
        away = {kind: np.zeros(count, dtype=np.bool_) for kind in kinds}
        for row in shut:
            worker_id = columns.worker_of[row]
            if worker_id:
                away[_absence(state, worker_id)][row] = True
        present = ~away["offline"]
        for kind, mask in away.items():
            self._put((kind, False), mask)
        total = view[f"{pool}_total"][:count]
        taken = np.maximum(view[f"{pool}_in_use"][:count], view[f"{pool}_live"][:count])
        full = total <= taken
        never = full & present & (total == 0)
        self._put(("slot", True), never)
        self._put(("slot", False), full & ~never)
        self._put(("credit", False), (view["credit"][:count] <= 0) & (view["open"][:count] > 0))

    def _put(self, kind: Kind, mask: Mask) -> None:
        if mask.any():
            self.refused[kind] = mask


def _absence(state: State, worker_id: str) -> str:
    worker, presence = state.workers[worker_id], state.presence[worker_id]
    if not presence.session or worker.silent:
        return "offline"
    if worker.draining:
        return "draining"
    return "suspect" if presence.suspect else "not_ready"


class Survey:
    """One look at all workers, through the claims and keepers of its rooms."""

    def __init__(self, state: State, rooms: Rooms) -> None:
        self.state, self.rooms = state, rooms
        columns = state.columns
        self.known: Mask = np.ones(columns.count, dtype=np.bool_)
        if len(columns.row_of) < columns.count:
            self.known = np.array([bool(name) for name in columns.worker_of], dtype=np.bool_)
        self._standings: dict[str, Standing] = {}
        self._classes: dict[ClassKey, dict[Kind, list[int]]] = {}
        self._totals: dict[str, Numbers] = {}

    def standing(self, pool: str) -> Standing:
        found = self._standings.get(pool)
        if found is None:
            found = self._standings[pool] = Standing(self.state, pool)
        return found

    def wrong_classes(self, ask: Ask) -> dict[Kind, list[int]]:
        """By which rules which classes of worker are refused."""
        key = class_key(ask)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = {}
            offers = self.state.columns.offers
            for index in np.flatnonzero(~self.rooms.class_mask(ask)).tolist():
                room = Room("", offers[index], (), {}, 0, 0, 0, 0, 0, 0, 0, True, False, False)
                for rule in CLASS_FILTERS:
                    rejection = rule(ask, room)
                    if rejection is not None:
                        found.setdefault((rejection.kind, rejection.ever), []).append(index)
        return found

    def total_of(self, name: str) -> Numbers:
        """How much of a named resource each worker has in all."""
        found = self._totals.get(name)
        if found is None:
            totals = self.state.columns.named_total
            found = self._totals[name] = np.array(
                [amount_of(total, name) for total in totals], dtype=np.int64
            )
        return found


class Scan:
    """One ask held against all workers. `refused` maps (rule, for ever or not) to the workers that rule refuses."""

    def __init__(self, survey: Survey, ask: Ask, owner: str = "") -> None:
        self.survey, self.ask, self.owner = survey, ask, owner
        self._columns = survey.state.columns
        self._count = self._columns.count
        self.refused: dict[Kind, Mask] = {}
        self._ask_classes()
        if ask.resources:
            self._ask_named()
        if ask.gpus:
            self._ask_cards()
        if ask.cpu_milli:
            self._ask_amount("cpu", "cpu", ask.cpu_milli)
        if ask.memory_bytes:
            self._ask_amount("memory", "mem", ask.memory_bytes)
        for kind, mask in survey.standing(ask.pool).refused.items():
            self._put(kind, mask)
        self.possible: Mask = survey.known & ~self._any(True)
        self.fits: Mask = self.possible & ~self._any(False)
        self._ask_keepers()

    def closest(self, kind: Kind, rows: Rows | None = None) -> int:
        """The worker that comes closest among those that a rule refuses; of workers that could ever do if there are."""
        if rows is None:
            rows = np.flatnonzero(self.refused[kind])
        if not kind[1] and len(narrowed := rows[self.possible[rows]]):
            rows = narrowed
        amounts = self._amounts(kind)
        return int(rows[0] if amounts is None else rows[amounts[rows].argmax()])

    def rejection(self, row: int, kind: Kind) -> Rejection:
        """One worker's own words for a rule's "no"."""
        if kind[0] == "ends":
            state = self.survey.state
            left_s = (ends_ms(state, self._columns.worker_of[row]) - state.now_ms) / 1000
            return Rejection("ends", "time to run", format_seconds(max(0, round(left_s))))
        if kind[0] == "reserved":
            return Rejection("reserved", "room that nobody is promised", "kept for another task")
        for found in rejections(self.ask, self.survey.rooms.room(row, self.ask.pool)):
            if found.kind == kind[0]:
                return found
        return Rejection(kind[0], "", "", kind[1])

    def rejections(self, row: int) -> list[Rejection]:
        """All "no" of one worker."""
        found = list(rejections(self.ask, self.survey.rooms.room(row, self.ask.pool)))
        for kind in (("reserved", False), ("ends", False)):
            if not found and (mask := self.refused.get(kind)) is not None and mask[row]:
                found.append(self.rejection(row, kind))
        return found

    # --- rules by columns ---------------------------------------------------------------------------------------------

    def _put(self, kind: Kind, mask: Mask) -> None:
        mask = mask & self.survey.known
        if mask.any():
            self.refused[kind] = mask

    def _any(self, ever: bool) -> Mask:
        found: Mask = np.zeros(self._count, dtype=np.bool_)
        for kind, mask in self.refused.items():
            if kind[1] is ever:
                found |= mask
        return found

    def _ask_classes(self) -> None:
        offers = self._columns.view["offer"][: self._count]
        for kind, wrong in self.survey.wrong_classes(self.ask).items():
            by_offer = np.zeros(len(self._columns.offers), dtype=np.bool_)
            by_offer[wrong] = True
            self._put(kind, by_offer[offers])

    def _ask_named(self) -> None:
        open_still: Mask = np.ones(self._count, dtype=np.bool_)
        never, later, held, outside, used_up = (~open_still for _ in range(5))
        for name, amount in self.ask.resources:
            total = self.survey.total_of(name)
            column = self._columns.view.get(f"named {name}")
            free = np.full(self._count, amount_unsaid(name)) if column is None else column[: self._count]
            wrong = open_still & (amount > total)
            busy = open_still & ~wrong & (amount > np.maximum(free, 0))
            if is_port(name):
                held |= busy
            elif name == LEASED:
                outside, used_up = wrong, busy
            else:
                never, later = never | wrong, later | busy
            open_still &= ~wrong & ~busy
        self._put(("resource", True), never)
        self._put(("resource", False), later)
        self._put(("port", False), held)
        self._put(("ports", True), outside)
        self._put(("ports", False), used_up)

    def _ask_cards(self) -> None:
        ask, view = self.ask, self._columns.view
        healthy = view["total_gpu"][: self._count]
        never = healthy < ask.gpus
        if ask.gpu_milli == WHOLE:
            enough = view["free_gpu"][: self._count] >= ask.gpus
        else:
            enough = view["best_milli"][: self._count] >= ask.gpu_milli
        self._put(("gpu", True), never)
        self._put(("gpu", False), ~never & ~enough)
        if ask.vram_total_bytes or ask.vram_each_bytes:
            ever = ~self._has_cards(0)
            self._put(("vram", True), ever)
            self._put(("vram", False), ~ever & ~self._has_cards(ask.gpu_milli))

    def _has_cards(self, least_milli: int) -> Mask:
        """Workers with cards that have the VRAM asked for, each with so much of it idle."""
        ask, count = self.ask, self._count
        vram = self._columns.device_vram[:count]
        least = ask.vram_each_bytes
        if ask.gpu_milli < WHOLE:
            least = max(least, ask.vram_total_bytes)
        good = vram >= max(least, 0)
        if least_milli:
            good &= self._columns.device_free[:count] >= least_milli
        enough: Mask = np.count_nonzero(good, axis=1) >= ask.gpus
        if ask.vram_total_bytes and ask.gpu_milli == WHOLE:
            largest = -np.sort(-np.where(good, vram, 0), axis=1)[:, : ask.gpus]
            enough &= largest.sum(axis=1) >= ask.vram_total_bytes
        return enough

    def _ask_amount(self, kind: str, what: str, amount: int) -> None:
        total = self._columns.view[f"total_{what}"][: self._count]
        never = total < amount
        self._put((kind, True), never & (self.survey.rooms.free(what) < amount))
        self._put((kind, False), ~never & (self.survey.rooms.free(what) < amount))

    def _ask_keepers(self) -> None:
        """A worker with room that is kept for somebody else."""
        rooms, kept = self.survey.rooms, np.zeros(self._count, dtype=np.bool_)
        for row in rooms.guards:
            if self.fits[row] and rooms.fit(row, self.ask, self.owner) is None:
                kept[row] = True
        state = self.survey.state
        if state.ending and kept.any():
            ends = np.array([name in state.ending for name in self._columns.worker_of[: self._count]]) & kept
            self._put(("ends", False), ends)
            self.fits &= ~ends
            kept &= ~ends
        if kept.any():
            self.refused["reserved", False] = kept
            self.fits &= ~kept

    def _amounts(self, kind: Kind) -> Numbers | None:
        """How near workers are to what a rule wants: by what they have in all, or by what is free now."""
        view, count, rooms = self._columns.view, self._count, self.survey.rooms
        name, ever = kind
        if name == "gpu":
            free = "free_gpu" if self.ask.gpu_milli == WHOLE else "best_milli"
            return view["total_gpu" if ever else free][:count]
        if name in ("cpu", "memory"):
            what = "cpu" if name == "cpu" else "mem"
            return view[f"total_{what}"][:count] if ever else rooms.free(what)
        if name == "ports":
            return self.survey.total_of(LEASED) if ever else view[name_column(LEASED)][:count]
        if name == "vram":
            most: Numbers = self._columns.device_vram[:count].max(axis=1, initial=-1)
            return most
        return None
