"""Which place a hub has for its files, opened: a folder that was named, else its database, else its home."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dray.config import HubConfig
from dray.hub.files.base import Files, Tapes
from dray.hub.files.local import LocalFiles
from dray.hub.files.shared import SharedFiles
from dray.hub.store.base import Remote, Store
from dray.presence import ensure_id
from dray.wire.local.blob_folder import TERMS

if TYPE_CHECKING:
    from dray.hub.store.postgres.store import PgStore

logger = logging.getLogger("dray.hub.files")


def open_files(config: HubConfig, store: Store, write: Callable[[Path, bytes], None]) -> Files:
    """The files of a hub that leads; `write` writes a private file of the home."""
    if config.files is not None:
        return SharedFiles(config.files, _name_site(config, store), lambda: store.epoch)
    if store.remote is not None:
        from dray.hub.files.postgres import PgFiles
        from dray.hub.files.side import Side

        return PgFiles(cast("PgStore", store).attach(Side))
    return LocalFiles(config.home, write)


def open_far_tapes(config: HubConfig, store: Store) -> Tapes | None:
    """Where a hub that stands by may put output of its workers by itself: in the database, which sorts writers out."""
    if config.files is not None or store.remote is None:
        return None
    from dray.hub.files.postgres import PgTapes
    from dray.hub.files.side import OpenSide

    return PgTapes(cast("PgStore", store).attach(OpenSide))


def _name_site(config: HubConfig, store: Store) -> str:
    if store.remote is not None:
        return f"postgres-{cast('PgStore', store).store_id[:12]}"
    return f"home-{ensure_id(config.home)}"


def lead_of(files: Files, store: Store) -> Remote | None:
    """Whom to ask before a worker is told that its output is filed: a folder does not know who leads."""
    return store.remote if isinstance(files, SharedFiles) else None


def has_little(files: Files, min_free_bytes: int) -> bool:
    """Whether there is too little room for new work."""
    free = files.free_bytes()
    return free is not None and free < min_free_bytes


def offer_blobs(config: HubConfig, files: Files) -> None:
    """Say to programs of this machine whether they may put large values into the folder of the home themselves."""
    if not isinstance(files, LocalFiles):
        with contextlib.suppress(OSError):
            (config.home / "blobs" / TERMS).unlink(missing_ok=True)
        return
    folder = files.blobs.folder
    try:
        folder.offer(config.max_blob_bytes, config.min_free_bytes)
    except OSError as fault:
        # Then values come by HTTP, as from other machines, until the disk has room again.
        logger.warning("%s cannot be offered to this machine's programs: %s", folder.root, fault.strerror)
