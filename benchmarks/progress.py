"""What a long run says while it goes on, and when it has run often enough.

Words go to standard error, so that output can be piped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

_BEGAN = time.monotonic()


def tell(text: str) -> None:
    """One line with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", file=sys.stderr, flush=True)


def rounds(most: int, budget_s: float) -> Iterator[int]:
    """Numbers of runs: as many as asked for, but no further one begins once the time is used up."""
    began = time.monotonic()
    for number in range(most):
        if number and time.monotonic() - began > budget_s * number / (number + 1):
            return
        yield number
