"""The keys of all workers for a shape, kept from pass to pass: only workers that changed since are scored again.

For shapes without cards under strategies that say what else their scores hang on (`Placer.stamp`). A cache: what it
gives is what `score_all` would, to the last bit, and whoever strikes workers out does so on a copy, since a dry run
leaves it alone too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.core.lifecycle.state.columns import Numbers
from dray.core.model.specs.resources import Asks
from dray.core.scheduling.capacity.memory import Floats, Stamp, Standing
from dray.core.scheduling.capacity.remaining import Left
from dray.core.scheduling.choosing.automatic import placement_of
from dray.core.scheduling.placement.candidates import LAST_RANK, RANK_BITS, score_all
from dray.core.scheduling.placement.scorers import Wish

if TYPE_CHECKING:
    from dray.core.scheduling.placement.placer import Placer

MOST_STANDINGS = 128
# One by one takes a few microseconds each, all at once about a hundred for a thousand workers.
FEW_CHANGES = 16


def is_plain(asks: Asks) -> bool:
    """Whether a shape has one alternative and asks for neither cards nor named resources: others have no standing."""
    return len(asks) == 1 and not (asks[0].gpus or asks[0].resources)


def keep_keys(placer: Placer, shape: int, flavour: str, wish: Wish) -> Numbers:
    """The keys of a shape over all workers as the pass found them; not to be written to."""
    stamp = placer.stamp(flavour)
    if stamp is None:
        return score_all(placer, wish)
    columns, known = placer.state.columns, placer.rooms.memory.standings
    # The ask itself, since numbers of shapes are used again; so long as it is kept here no other takes its place.
    stamp = (wish.ask, placer.state.policy, placement_of(placer.state), columns.roster, *stamp)
    kept = known.get((shape, flavour))
    if kept is not None and _is_same(kept.stamp, stamp):
        changed = columns.changes_since(kept.read)
        if changed is not None and len(changed) <= FEW_CHANGES:
            for row in dict.fromkeys(changed):
                kept.keys[row] = _key_of(placer, wish, row, kept.steady)
            kept.read = columns.changes_read
            return kept.keys
    keys = score_all(placer, wish)
    if keys.max(initial=-1) < 0:
        return keys  # nobody was asked for a score
    if kept is None and len(known) >= MOST_STANDINGS:
        del known[next(iter(known))]
    known[shape, flavour] = Standing(stamp, columns.changes_read, keys, placer.steady())
    return keys


def _is_same(before: Stamp, now: Stamp) -> bool:
    same = before[0] is now[0] and before[1] is now[1] and before[2] is now[2]
    return same and before[3:] == now[3:]


def _key_of(placer: Placer, wish: Wish, row: int, steady: tuple[Floats, ...]) -> int:
    columns = placer.state.columns
    if not (
        Left(columns, row).holds(wish.ask) and placer.rooms.class_mask(wish.ask)[columns.get("offer", row)]
    ):
        return -1
    return (placer.score_one(row, wish.ask, steady) << RANK_BITS) + LAST_RANK - columns.get("rank", row)
