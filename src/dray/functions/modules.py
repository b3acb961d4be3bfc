"""The modules around a function: which are the user's own, which can be imported elsewhere, which have changed on disk.

A runner lives longer than the program that called it. So that an edited module is not run in its old form, a runner
asks `drop_stale` before it takes up a job: whatever changed on disk since it was imported is imported anew, together
with all other modules of the user, since they may hold pieces of it.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
from functools import lru_cache
from importlib.machinery import PathFinder
from types import ModuleType


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
    if not file or module.__name__ == "__main__":
        return False
    return not os.path.realpath(file).startswith(_installed_roots())


def list_user_modules() -> dict[str, str]:
    """The user's modules that are loaded, and their files."""
    return {name: str(module.__file__) for name, module in list(sys.modules.items()) if is_users(module)}


def list_paths() -> list[str]:
    """Folders of this program's import path that hold the user's modules: a runner on this machine looks there too."""
    paths = (os.path.abspath(path or os.getcwd()) for path in sys.path)
    roots = _installed_roots()
    prefixes = tuple(os.path.join(os.path.realpath(root), "lib") for root in (sys.prefix, sys.base_prefix))
    return list(
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


@lru_cache(maxsize=1024)
def find_version(package: str) -> str:
    """The version of an installed package by the name of its module; empty where none is to be had."""
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
    return version if isinstance(version, str) else "0"


class ModuleWatch:
    """What the files of the user's modules looked like when they were first seen loaded."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int, int]] = {}

    def drop_stale(self) -> bool:
        """Forget all of the user's modules if the file of any has changed; True where functions must be opened anew."""
        loaded = list_user_modules()
        stale = any(_stamp(file) != self._seen[name] for name, file in loaded.items() if name in self._seen)
        if stale:
            for name in loaded:
                sys.modules.pop(name, None)
            self._seen.clear()
            return True
        for name, file in loaded.items():
            if name not in self._seen:
                self._seen[name] = _stamp(file)
        return False


def _stamp(file: str) -> tuple[str, int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return file, 0, 0
    return file, found.st_mtime_ns, found.st_size
