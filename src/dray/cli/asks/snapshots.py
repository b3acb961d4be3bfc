"""Folders that jobs are to run in, brought to the hub before the jobs are: each once, however many jobs name it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dray.core.model.specs.asks import FOLDER
from dray.core.model.units import format_bytes

if TYPE_CHECKING:
    from dray.cli.base.hub import Hub

# From here on it is told what takes most of it.
LARGE_BYTES = 256 << 20


def bring_folders(hub: Hub, specs: Sequence[dict[str, Any]], most_bytes: int = 0) -> list[dict[str, Any]]:
    """Make and send the snapshots that specs name by a folder; gives the specs as the hub takes them."""
    folders = dict.fromkeys(folder for spec in specs if (folder := folder_of(spec)))
    if not folders:
        return list(specs)
    brought = {folder: _bring(hub, folder, most_bytes) for folder in folders}
    return [{**spec, **brought[folder]} if (folder := folder_of(spec)) else spec for spec in specs]


def folder_of(spec: Mapping[str, Any]) -> str:
    """The folder that a spec names; empty where there is none."""
    named = spec.get("snapshot_id")
    return named.removeprefix(FOLDER) if isinstance(named, str) and named.startswith(FOLDER) else ""


def _bring(hub: Hub, folder: str, most_bytes: int) -> dict[str, str]:
    # Here, since all else does without.
    from dray.cli.base.outage import say
    from dray.client.reach.discovery import find_target
    from dray.client.reach.snapshots import send_snapshot
    from dray.snapshots.packing import MOST_BYTES

    sent = send_snapshot(lambda: find_target(hub.config), os.path.abspath(folder), most_bytes or MOST_BYTES)
    say(sent.describe())
    if sent.packed.tree.size >= LARGE_BYTES:
        say(f"largest: {', '.join(f'{path} {format_bytes(size)}' for path, size in sent.largest)}")
    return {"snapshot_id": sent.id, "snapshot_sha": sent.sha}
