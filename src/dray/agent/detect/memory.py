"""How much memory tasks on this machine may use together: physical memory or the tightest control group limit.

Owns the reading of those limits, not their enforcement. The surprising rule: v1 has no word for "unlimited" and shows a
huge page-rounded number instead, so every limit at or above physical memory counts as none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from dray.agent.detect.cgroup import read_limit_files
from dray.core.model.units import format_bytes


class MemoryFound(NamedTuple):
    memory_bytes: int
    note: str


def detect_memory(root: Path = Path("/")) -> MemoryFound:
    physical_bytes = read_physical_bytes()
    limit_bytes = read_limit_bytes(root)
    if limit_bytes is None or limit_bytes >= physical_bytes:
        return MemoryFound(
            physical_bytes, f"memory: {format_bytes(physical_bytes)}, no lower control group limit"
        )
    return MemoryFound(
        limit_bytes,
        f"memory: {format_bytes(limit_bytes)} by control group limit, of {format_bytes(physical_bytes)}",
    )


def read_physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        # Only systems without these names pay for the import.
        import psutil

        return int(psutil.virtual_memory().total)


def read_limit_bytes(root: Path) -> int | None:
    """The tightest limit of this group and those above it; None where none is set."""
    texts = read_limit_files("memory", "memory.max", root)
    texts += read_limit_files("memory", "memory.limit_in_bytes", root)
    # v1 sums up the groups above, also those that a container's mount hides.
    for stat in read_limit_files("memory", "memory.stat", root):
        fields = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
        texts.append(fields.get("hierarchical_memory_limit", ""))
    return min((int(text) for text in texts if text.isdigit()), default=None)
