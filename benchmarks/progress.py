"""What a long run says while it goes on; on standard error, so that output can be piped."""

from __future__ import annotations

import sys
import time

_BEGAN = time.monotonic()


def tell(text: str) -> None:
    """One line with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", file=sys.stderr, flush=True)
