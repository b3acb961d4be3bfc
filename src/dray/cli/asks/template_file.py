"""Template files: YAML to the document that the hub takes, its problems told with line and column.

The spec inside is written with the keys of a job file and read as one: what holds text or a size is taken as written.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from dray.cli.asks.fields import JobFileError
from dray.cli.asks.jobfile import JobReader
from dray.core.model.templates.template import check_template
from dray.errors import InvalidSpec
from dray.marked_yaml import MarkedYaml, Place, read_text

MAX_FILE_BYTES = 1 << 20
_PROGRAMS = ("command", "prolog", "epilog")


def load_template(text: str, name: str) -> dict[str, Any]:
    """Read a template, or raise `JobFileError` with every problem at its line."""
    reader = _Reader(text)
    document = reader.read()
    if not reader.stopped and isinstance(document, dict):
        _split_programs(document.get("spec"))
    if not reader.stopped and not reader.count_faults():
        try:
            check_template(document)
        except InvalidSpec as fault:
            for problem in fault.problems:
                reader.note(reader.find(problem.where), f"{problem.where}: {problem.what}")
    if reader.stopped and "${" in text:
        reader.note(None, 'inside [ ] and { } YAML wants ${name} in quotes: [run, "${name}"]')
    if problems := reader.problems(name):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise JobFileError(f"{name} has {count}, nothing was added", problems)
    found: dict[str, Any] = document
    return found


def read_template_file(path: Path) -> dict[str, Any]:
    """Read a template from a file."""
    return load_template(read_text(path, MAX_FILE_BYTES, "no template needs that", JobFileError), str(path))


def _split_programs(spec: Any) -> None:
    """Split a command that is one text into words, as in a job file, before anything is filled in."""
    for field in _PROGRAMS if isinstance(spec, dict) else ():
        if isinstance(spec.get(field), str):
            try:
                spec[field] = shlex.split(spec[field])
            except ValueError as error:
                raise JobFileError(f"{field}: {spec[field]!r} cannot be split into words: {error}") from None


class _Reader(JobReader):
    what, called = "template", "key"

    def scalar(self, node: yaml.Node, place: Place) -> Any:
        if place[:1] == ("spec",) and len(place) > 1:
            return super().scalar(node, place[1:])
        return MarkedYaml.scalar(self, node, place)

    def find(self, where: str) -> yaml.Mark | None:
        """Where a value stands; where it is missing, where what is around it does."""
        spelled = {_spell(place): mark for place, mark in self.marks.items()}
        while where and where not in spelled:
            where = where[: max(where.rfind("."), where.rfind("["), 0)]
        return spelled.get(where)


def _spell(place: Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in place).removeprefix(
        "."
    )
