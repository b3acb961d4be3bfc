"""Make a failing history smaller: leave out faults as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable


def shrink(
    numbers: list[int], still_fails: Callable[[frozenset[int]], bool], tries: int = 200
) -> frozenset[int]:
    """Give the fault numbers that can be left out. `still_fails` is asked with candidates, at most `tries` times.

    Leaves out ever smaller parts of what is left, as delta debugging does; any failure counts, since one that turns
    into another on the way is worth as much.
    """
    kept, parts = list(numbers), 2
    everything = frozenset(numbers)
    while len(kept) > 1 and tries > 0:
        size = max(1, len(kept) // parts)
        for start in range(0, len(kept), size):
            smaller = kept[:start] + kept[start + size :]
            tries -= 1
            if still_fails(everything - frozenset(smaller)):
                kept, parts = smaller, max(2, parts - 1)
                break
            if tries <= 0:
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return everything - frozenset(kept)
