"""The file of settings in a home: TOML or YAML, read to tables of values that know where they stand.

Knows nothing about what may be set. Of several files the first of `NAMES` is read; the others, and files whose names
are nearly right, are named to whoever looks for what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dray.errors import InvalidConfig, Problem

NAMES = ("config.toml", "config.yaml", "config.yml")
MOST_BYTES = 1 << 20
# What is never read, and what is read in its place.
_NEARLY = {
    "config.json": "config.toml or config.yaml",
    "dray.toml": "config.toml",
    "dray.yaml": "config.yaml",
    "policy.yml": "policy.yaml",
    "policy.toml": "policy.yaml",
    "policy.json": "policy.yaml",
}


class Settings(NamedTuple):
    """What a file says. `places` has line and column of a table, or of a key in one, as far as they are known."""

    path: Path
    tables: dict[str, Any]
    places: dict[tuple[str, ...], str]
    problems: list[Problem]

    def where(self, *keys: str) -> str:
        """How a place in the file is told."""
        return f"{self.path}{self.places.get(keys, '')}"


def read_settings(home: Path) -> Settings:
    """The settings of a home, empty where there is no file."""
    path = next((path for name in NAMES if (path := home / name).exists()), home / NAMES[0])
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return Settings(path, {}, {}, [])
    except OSError as error:
        return Settings(path, {}, {}, [Problem(str(path), f"cannot be read: {error.strerror}")])
    except UnicodeDecodeError as error:
        return Settings(path, {}, {}, [Problem(str(path), f"is not UTF-8 text: byte {error.start}")])
    return _read_toml(path, text) if path.suffix == ".toml" else _read_yaml(path, text)


def list_ignored(home: Path) -> list[str]:
    """A sentence about each file that lies in a home as if it were read, and is not."""
    found = [name for name in NAMES if (home / name).exists()]
    told = [f"{home / name} is ignored: the settings are read from {found[0]}" for name in found[1:]]
    return told + [
        f"{home / name} is ignored: it would be read as {instead}"
        for name, instead in _NEARLY.items()
        if (home / name).exists()
    ]


def _read_toml(path: Path, text: str) -> Settings:
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, place = str(error), ""
        if match := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", what):
            what, place = match[1], f":{match[2]}:{match[3]}"
        return Settings(path, {}, {}, [Problem(f"{path}{place}", f"is not valid TOML: {what}")])
    return Settings(path, tables, dict(_find_places(text)), [])


def _find_places(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where tables and keys begin. Read off the lines, since the reader of TOML does not tell: what is written in
    another way, such as a table within a line, is known by its name alone.
    """
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        place = f":{number}:{len(line) - len(line.lstrip()) + 1}"
        if header := re.match(r"\s*\[([\w-]+)\]", line):
            table = header[1]
            yield (table,), place
        elif key := re.match(r"\s*([\w-]+)\s*=", line):
            yield ((table, key[1]) if table else (key[1],)), place


def _read_yaml(path: Path, text: str) -> Settings:
    from dray.marked_yaml import MarkedYaml

    class Reader(MarkedYaml):
        what, called, most, deepest = "file of settings", "name", 10_000, 8

    if len(text) > MOST_BYTES:
        raise InvalidConfig(f"{path} is larger than {MOST_BYTES >> 20} MiB: no settings need that")
    reader = Reader(text)
    tables = reader.read()
    places = {
        tuple(map(str, place)): f":{mark.line + 1}:{mark.column + 1}"
        for place, mark in reader.marks.items()
        if len(place) <= 2
    }
    problems = reader.problems(str(path))
    if tables is not None and not isinstance(tables, dict):
        problems.append(Problem(f"{path}:1:1", "must hold tables: write hub:, worker: or client:"))
    return Settings(path, tables if isinstance(tables, dict) else {}, places, problems)
