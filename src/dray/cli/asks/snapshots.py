"""Folders and environments that jobs are to run in, brought to the hub before the jobs are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dray.core.model.specs.asks import is_to_bring
from dray.core.model.units import format_bytes

if TYPE_CHECKING:
    from dray.cli.base.hub import Hub
    from dray.client.reach.snapshots import Sent

# From here on it is told what takes most of it.
LARGE_BYTES = 256 << 20


def bring_folders(hub: Hub, specs: Sequence[dict[str, Any]], most_bytes: int = 0) -> list[dict[str, Any]]:
    """Send along what specs name by folders and files of this machine; gives the specs as the hub takes them."""
    if not any(map(is_to_bring, specs)):
        return list(specs)
    # Here, since all else does without.
    from dray.client.reach import snapshots
    from dray.client.reach.discovery import find_target

    return snapshots.bring_all(lambda: find_target(hub.config), specs, most_bytes, _tell)


def _tell(sent: Sent) -> None:
    from dray.cli.base.outage import say

    say(sent.describe())
    if sent.packed.tree.size >= LARGE_BYTES:
        say(f"largest: {', '.join(f'{path} {format_bytes(size)}' for path, size in sent.largest)}")
