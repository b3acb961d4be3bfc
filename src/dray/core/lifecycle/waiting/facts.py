"""What becomes durable of the waiting of jobs."""

from __future__ import annotations

import msgspec


class WaitsCharged(msgspec.Struct, frozen=True, array_like=True, tag=80):
    """So much was waited by each of these jobs for each reason, since this was last said of it."""

    charges: tuple[tuple[str, tuple[int, ...]], ...]
