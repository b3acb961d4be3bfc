"""A tree laid out for one attempt: folders of its own, files that are clones of kept ones, or links to them.

Made where no task can enter and then moved into place whole, so that nobody's links can lead us anywhere, and a tree
that is there is complete. Where the file system can share bytes between files each is the task's own, to write to.
Where it cannot, a file is one more name of a kept one: nobody may write to it, whoever wants to replaces it. Surprising
rule: tasks of root get copies then, since modes do not bind root; they cost some time that others do not wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable
from typing import NamedTuple

from dray.snapshots.manifest import File, Manifest

_FICLONE = 0x40049409
_MOST = 1 << 30
Put = Callable[[str, str, File], None]


class Owner(NamedTuple):
    """Whose a tree is: -1 for the agent's own account. `bound`: modes hold for it."""

    uid: int
    gid: int
    bound: bool


def can_clone(folder: str) -> bool:
    """Whether files in this folder can share their bytes and still be written to apart."""
    names = [f"{folder}/clone-{secrets.token_hex(4)}" for _ in range(2)]
    try:
        with open(names[0], "wb") as file:
            file.write(b"\0" * 4096)
        _clone(names[0], names[1])
    except OSError:
        return False
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)
    return True


def lay_out(
    manifest: Manifest, stage: str, place: str, find: Callable[[File], str], owner: Owner, clones: bool
) -> None:
    """Lay a tree out at `place`, where nothing is; raises OSError, FileNotFoundError where a kept file went meanwhile.

    `stage` is a folder that is ours alone, of the same file system.
    """
    root = f"{stage}/{secrets.token_hex(8)}"
    put = _own(_clone, owner) if clones else _link if owner.bound else _own(_copy, owner)
    try:
        folders = _make_folders(manifest, root)
        for file in manifest.files:
            put(find(file), f"{root}/{file.path}", file)
        for path, target in manifest.links:
            os.symlink(target, f"{root}/{path}")
        if owner.uid >= 0:
            for folder in folders:
                os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)
        os.rename(root, place)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def _make_folders(manifest: Manifest, root: str) -> list[str]:
    wanted: set[str] = set()
    paths = [file.path for file in manifest.files] + [path for path, _ in manifest.links]
    for path in [*(path.rpartition("/")[0] for path in paths), *manifest.folders]:
        while path and path not in wanted:
            wanted.add(path)
            path = path.rpartition("/")[0]
    folders = [root, *(f"{root}/{path}" for path in sorted(wanted))]
    for folder in folders:
        os.mkdir(folder, 0o700 if folder == root else 0o755)
    return folders


def _link(kept: str, path: str, file: File) -> None:
    os.link(kept, path, follow_symlinks=False)


def _own(fill: Callable[[str, str], None], owner: Owner) -> Put:
    def put(kept: str, path: str, file: File) -> None:
        fill(kept, path)
        os.chmod(path, 0o755 if file.runs else 0o644)
        if owner.uid >= 0:
            os.chown(path, owner.uid, owner.gid, follow_symlinks=False)

    return put


def _clone(kept: str, path: str) -> None:
    with open(kept, "rb", buffering=0) as source, open(path, "xb", buffering=0) as target:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())


def _copy(kept: str, path: str) -> None:
    with open(kept, "rb", buffering=0) as source, open(path, "xb", buffering=0) as target:
        if hasattr(os, "copy_file_range"):
            while os.copy_file_range(source.fileno(), target.fileno(), _MOST):
                pass
        else:
            shutil.copyfileobj(source, target, 1 << 20)
