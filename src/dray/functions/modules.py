"""The modules around a function: which are the user's own, which can be imported elsewhere, which have changed on disk.

A runner lives longer than the program that called it. So that an edited module is not run in its old form, a runner
asks `drop_stale` before it takes up a job: whatever changed on disk since it was imported is imported anew, together
with all other modules of the user, since they may hold pieces of it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import site
import sys
import sysconfig
import time
from functools import lru_cache
from importlib.machinery import PathFinder
from types import ModuleType

UNKNOWN = "unknown"


@lru_cache(maxsize=1)
def _installed_roots() -> tuple[str, ...]:
    """Where the interpreter and installed packages live."""
    named = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    named |= set(site.getsitepackages()) if hasattr(site, "getsitepackages") else set()
    named.add(site.getusersitepackages())
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(os.path.join(os.path.realpath(root), "") for root in {*named, own} if root)


def is_users(module: ModuleType) -> bool:
    """Whether a module is the user's own file: neither of the interpreter nor of an installed package."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and module.__name__ != "__main__" and _is_outside(file)


@lru_cache(maxsize=16384)
def _is_outside(file: str) -> bool:
    return not os.path.realpath(file).startswith(_installed_roots())


def list_user_modules() -> dict[str, str]:
    """The user's modules that are loaded, and their files."""
    return {name: str(module.__file__) for name, module in list(sys.modules.items()) if is_users(module)}


def list_paths() -> list[str]:
    """Folders of this program's import path that hold the user's modules: a runner on this machine looks there too."""
    return list(_list_paths(os.getcwd(), tuple(sys.path)))


@lru_cache(maxsize=16)
def _list_paths(folder: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    paths = (os.path.join(folder, path) if path else folder for path in entries)
    roots = _installed_roots()
    prefixes = tuple(os.path.join(os.path.realpath(root), "lib") for root in (sys.prefix, sys.base_prefix))
    return tuple(
        dict.fromkeys(
            path
            for path in paths
            if os.path.isdir(path)
            and not os.path.join(os.path.realpath(path), "").startswith((*roots, *prefixes))
        )
    )


def add_paths(paths: tuple[str, ...]) -> None:
    """Look for modules in the caller's folders as well, after this interpreter's own."""
    for path in paths:
        if path not in sys.path and os.path.isdir(path):
            sys.path.append(path)


def is_importable(module: ModuleType) -> bool:
    """Whether a fresh interpreter with the same path would find this very module by its name."""
    if getattr(module, "__spec__", None) is None:
        return False
    file = getattr(module, "__file__", None)
    if file is None or not is_users(module):
        return True
    path: list[str] | None = None
    found = None
    parts = module.__name__.split(".")
    for depth in range(len(parts)):
        found = PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if found is None:
            return False
        path = list(found.submodule_search_locations or ())
    origin = found.origin if found is not None else None
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)


class HiddenModules:
    """Loaded modules that another interpreter could not import: what they define must travel by value."""

    def __init__(self) -> None:
        self._count = 0
        self._found: dict[bytes, ModuleType] = {}

    def named_in(self, data: bytes) -> list[ModuleType]:
        """Those whose name stands in a pickle."""
        self._look()
        return [module for name, module in self._found.items() if name in data]

    def holds(self, name: str | None) -> bool:
        """Whether a module of this name is one of them."""
        self._look()
        return name is not None and name.encode() in self._found

    def _look(self) -> None:
        """Anew only where modules were loaded since."""
        if len(sys.modules) != self._count:
            self._count = len(sys.modules)
            users = [module for module in list(sys.modules.values()) if is_users(module)]
            self._found = {one.__name__.encode(): one for one in users if not is_importable(one)}


@lru_cache(maxsize=1024)
def find_version(package: str) -> str:
    """The version of a package by the name of its module: `UNKNOWN` where it has none, empty where it is missing."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    import importlib.metadata  # here: it loads half of the mail package, and few programs ask

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    try:
        module = __import__(package)
    except ImportError:
        return ""
    version = getattr(module, "__version__", None)
    return version if isinstance(version, str) else UNKNOWN


class ModuleWatch:
    """What the files of the user's modules looked like when they were loaded."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int, int]] = {}
        self._looked_ns = time.time_ns()

    def drop_stale(self) -> bool:
        """Forget all of the user's modules if the file of any has changed; True where functions must be opened anew."""
        loaded = {name: _stamp(file) for name, file in list_user_modules().items()}
        stale = any(self._is_stale(name, stamp) for name, stamp in loaded.items())
        self._looked_ns = time.time_ns()
        if not stale:
            self._seen = loaded
            return False
        for name in loaded:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        self._seen = {}
        return True

    def _is_stale(self, name: str, stamp: tuple[str, int, int]) -> bool:
        known = self._seen.get(name)
        # One that was loaded since the last look, from a file that was written since then, may be older than its file.
        return stamp[1] > self._looked_ns if known is None else stamp != known


def _stamp(file: str) -> tuple[str, int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return file, 0, 0
    return file, found.st_mtime_ns, found.st_size
