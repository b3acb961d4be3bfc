"""Which place a hub has for its files, opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dray.config import HubConfig
from dray.hub.files.base import Files
from dray.hub.files.local import LocalFiles
from dray.hub.store.base import Store

logger = logging.getLogger("dray.hub.files")


def open_files(config: HubConfig, store: Store, write: Callable[[Path, bytes], None]) -> Files:
    """The files of a hub that leads; `write` writes a private file of the home."""
    return LocalFiles(config.home, write)


def offer_blobs(config: HubConfig, files: Files) -> None:
    """Say to programs of this machine whether they may put large values into the folder of the home themselves."""
    if not isinstance(files, LocalFiles):
        return
    folder = files.blobs.folder
    try:
        folder.offer(config.max_blob_bytes, config.min_free_bytes)
    except OSError as fault:
        # Then values come by HTTP, as from other machines, until the disk has room again.
        logger.warning("%s cannot be offered to this machine's programs: %s", folder.root, fault.strerror)
