"""Workers sorted by make, so that ten thousand of them are told in a few lines.

A class is what people call one: backend, model and number of cards, cores. Labels are left out: they often name the
machine itself.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.columns import Columns, Offer
from dray.core.scheduling.capacity.remaining import Rows
from dray.core.scheduling.capacity.survey import Scan
from dray.core.scheduling.explain.reason import WorkerClass, word_short

MOST_CLASSES = 16
OTHERS = "of other makes"


def sort_by_class(scan: Scan, variant: int = 0) -> list[WorkerClass]:
    """What rules out how many of each class, the largest classes first; the last one gathers the small rest."""
    columns = scan.survey.state.columns
    rows = np.flatnonzero(scan.survey.known)
    keys = _keys(columns, rows)
    _, firsts, numbers, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    found = []
    for number in order[:MOST_CLASSES].tolist():
        members = rows[numbers == number]
        found.append(_tell(scan, members, _name(columns, int(rows[firsts[number]])), variant))
    if len(order) > MOST_CLASSES:
        rest = rows[np.isin(numbers, order[MOST_CLASSES:])]
        found.append(_tell(scan, rest, OTHERS, variant))
    return sorted(found, key=lambda group: (-group.fit, group.name == OTHERS, -group.workers, group.name))


def _keys(columns: Columns, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """One integer per worker that is equal for workers of one class."""
    names: dict[tuple[str, str], int] = {}
    of_offer = np.array(
        [names.setdefault(_make(offer), len(names)) for offer in columns.offers], dtype=np.int64
    )
    view = columns.view
    make = of_offer[view["offer"][rows]]
    keys: np.ndarray[tuple[int], np.dtype[np.int64]] = (make << 44) | (view["total_gpu"][rows] << 32)
    keys |= view["total_cpu"][rows] & 0xFFFFFFFF
    return keys


def _make(offer: Offer) -> tuple[str, str]:
    fake = "fake " if ("fake", "true") in offer.labels else ""
    return f"{fake}{offer.backend}", offer.gpu_words[0] if offer.gpu_words else ""


def _name(columns: Columns, row: int) -> str:
    backend, model = _make(columns.offers[columns.get("offer", row)])
    cards, cores = columns.get("total_gpu", row), columns.get("total_cpu", row) / 1000
    parts = [f"{backend}{f' {model}' if model and model != backend else ''}"]
    if model or cards:
        parts[0] += f" × {cards}"
    return ", ".join([*parts, f"{cores:g} core{'' if cores == 1 else 's'}"])


def _tell(scan: Scan, members: Rows, name: str, variant: int) -> WorkerClass:
    blockers = []
    for kind, mask in scan.refused.items():
        refused = members[mask[members]]
        if len(refused):
            rejection = scan.rejection(scan.closest(kind, refused), kind)
            blockers.append(word_short(rejection, len(refused), len(members), variant))
    blockers.sort(key=lambda blocker: (not blocker.ever, -blocker.workers))
    return WorkerClass(name, len(members), int(scan.fits[members].sum()), tuple(blockers), variant)
