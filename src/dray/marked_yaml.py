"""YAML whose problems are told with line and column, all of them at once: what job files,
policies and settings are read with.

Reads nodes instead of values, because only nodes know where they stand. Knows nothing about what a file is for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.errors import DrayError, Problem

STANDARD = "tag:yaml.org,2002:"
# A date stays text: JSON has none, and whoever reads it would get whatever Python makes of it.
TEXTS = {f"{STANDARD}{kind}" for kind in ("str", "timestamp", "value")}
NUMBERS = {f"{STANDARD}{kind}" for kind in ("int", "float", "bool")}
COLLECTIONS = {f"{STANDARD}{kind}" for kind in ("map", "seq")}
NULL = f"{STANDARD}null"
Place = tuple[str | int, ...]


class _Fault(NamedTuple):
    mark: yaml.Mark | None
    what: str


def read_text(path: Path, most_bytes: int, advice: str, kind: type[DrayError]) -> str:
    """Read a file as text, or raise `kind`."""
    try:
        if path.stat().st_size > most_bytes:
            raise kind(f"{path} is larger than {most_bytes >> 20} MiB: {advice}")
        return path.read_bytes().decode()
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise kind(f"{path} is not UTF-8 text: byte {error.start} is {error.reason}") from None


class MarkedYaml:
    """One pass over one file; collects faults and remembers where each value stands.

    `what` is what the file is, `called` what a name in it is; it unfolds to `most` values and `deepest` levels.
    """

    what = called = ""
    most, deepest = 0, 0

    def __init__(self, text: str) -> None:
        self.marks: dict[Place, yaml.Mark] = {}
        self.stopped = False
        self._faults: list[_Fault] = []
        self._text, self._count = text, 0

    def start(self) -> yaml.SafeLoader:
        """The loader; its constructor refuses characters that YAML does not know."""
        self.loader = yaml.SafeLoader(self._text)
        return self.loader

    def read(self) -> Any:
        """The whole file; None where it is empty, or cannot be read."""
        try:
            root = self.start().get_single_node()
            return None if root is None else self.value(root, ())
        except (yaml.MarkedYAMLError, yaml.reader.ReaderError, RecursionError) as error:
            self.note_syntax(error)
        return None

    def note(self, mark: yaml.Mark | None, what: str) -> None:
        self._faults.append(_Fault(mark, what))

    def note_syntax(self, error: Exception) -> None:
        """A fault behind which nothing can be placed."""
        self.stopped = True
        if isinstance(error, yaml.MarkedYAMLError):
            what = " ".join(part for part in (error.context, error.problem) if part)
            self.note(error.problem_mark or error.context_mark, f"this is not valid YAML: {what}")
        elif isinstance(error, RecursionError):
            self.note(None, f"is nested too deeply to be a {self.what}")
        else:
            self.note(None, f"is not valid YAML: {str(error).splitlines()[0]}")

    def note_tag(self, node: yaml.Node) -> None:
        tag = node.tag.replace(STANDARD, "!!")
        self.note(node.start_mark, f"the tag {tag} has no meaning in a {self.what}: leave it out")

    def count_faults(self) -> int:
        return len(self._faults)

    def problems(self, name: str) -> list[Problem]:
        """All faults in the order of the file that is called `name`."""
        ordered = sorted(
            self._faults, key=lambda one: (one.mark.line, one.mark.column) if one.mark else (0, 0)
        )
        return [
            Problem(
                name if one.mark is None else f"{name}:{one.mark.line + 1}:{one.mark.column + 1}", one.what
            )
            for one in ordered
        ]

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, node: yaml.Node, place: Place) -> Any:
        """What a node holds."""
        self.marks.setdefault(place, node.start_mark)
        self._count += 1
        if self._count > self.most or len(place) > self.deepest:
            return self.overflow(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, place)

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        """Names are what is written: `no:` is called no."""
        self._find_duplicates(node)
        try:
            self.loader.flatten_mapping(node)
        except yaml.MarkedYAMLError as error:
            self.note_syntax(error)
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.note(key_node.start_mark, f"a {self.called} must be plain text")
                continue
            here = (*place, key_node.value)
            self.marks[here] = key_node.start_mark
            found[key_node.value] = self.value(value_node, here)
        return found

    def scalar(self, node: yaml.Node, place: Place) -> Any:
        """What a single value is read as."""
        if node.tag in TEXTS:
            return node.value
        if node.tag not in (*NUMBERS, NULL):
            self.note_tag(node)
            return None
        try:
            return self.loader.construct_object(node)
        except ValueError as error:
            self.note(node.start_mark, f"{node.value[:64]!r} cannot be read: {error}")
            return None

    def overflow(self, node: yaml.Node) -> Any:
        """What becomes of a value that is one too many."""
        raise yaml.MarkedYAMLError(
            problem=f"it unfolds to more than a {self.what} holds", problem_mark=node.start_mark
        )

    def _find_duplicates(self, node: yaml.MappingNode) -> None:
        """Before merge keys are unfolded: a merged name may be given again, a written one may not."""
        seen: dict[str, yaml.Mark] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            first = seen.setdefault(key_node.value, key_node.start_mark)
            if first is not key_node.start_mark:
                what = f"{key_node.value!r} is given twice, first in line {first.line + 1}"
                self.note(key_node.start_mark, what)
