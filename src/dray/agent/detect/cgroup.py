"""Find the control groups this process lives in, and read their limit files from the leaf upwards.

Owns the layout of v1, v2 and hybrid hierarchies; what a limit means belongs to `cpu` and `memory`. The surprising rule:
a container sees its own group mounted as if it were the root, so a path from /proc/self/cgroup counts only where it
lies below the mount's own root; otherwise the mount point itself is the group.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _Mount(NamedTuple):
    """One mounted hierarchy: `controllers` is empty for the unified one (v2)."""

    group_root: PurePosixPath
    point: PurePosixPath
    controllers: frozenset[str]


def read_limit_files(controller: str, name: str, root: Path = Path("/")) -> list[str]:
    """The texts of file `name` in this process' group of `controller` and in every group above it, leaf first."""
    texts = []
    for directory in find_directories(controller, root):
        text = read_text(directory / name)
        if text is not None:
            texts.append(text)
    return texts


def find_directories(controller: str, root: Path = Path("/")) -> list[Path]:
    """The chain of group directories, leaf first, of the v1 hierarchy that holds `controller`, then of the v2 one."""
    groups = _read_groups(root)
    chains: list[Path] = []
    for mount in _read_mounts(root):
        if mount.controllers and controller not in mount.controllers:
            continue
        path = groups.get(controller if mount.controllers else "")
        if path is not None:
            chains += _walk_up(mount, path, root)
    return chains


def read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _walk_up(mount: _Mount, group: PurePosixPath, root: Path) -> list[Path]:
    point = root / str(mount.point).lstrip("/")
    if ".." in group.parts or not group.is_relative_to(mount.group_root):
        return [point]
    leaf = group.relative_to(mount.group_root)
    # Ends with `point` itself: the parents of a relative path end with ".".
    return [point / above for above in (leaf, *leaf.parents)] if leaf.parts else [point]


def _read_groups(root: Path) -> dict[str, PurePosixPath]:
    """Group path by controller; the unified hierarchy stands under the empty name."""
    groups: dict[str, PurePosixPath] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(","):
                groups[controller] = PurePosixPath(fields[2])
    return groups


def _read_mounts(root: Path) -> list[_Mount]:
    mounts = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        head, tail = before.split(), after.split()
        if len(head) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(tail[2].split(",")) if tail[0] == "cgroup" else frozenset[str]()
        mounts.append(_Mount(_unescape(head[3]), _unescape(head[4]), controllers))
    return mounts


def _unescape(field: str) -> PurePosixPath:
    """The kernel writes blanks and backslashes in mountinfo as three octal digits."""
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field))
