"""Job files: YAML to specs, or to every problem of the file at once, each with its line and column.

Reads nodes instead of values, because only nodes know where they stand, and because YAML would read `1:30` as ninety
and `no` as false: a key that holds text or a size takes the characters as they are written. A file holds one job, a
list of jobs, or several documents of either.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.cli.asks.fields import FIELD_OF, READERS, Asks, overlay, read_asks, read_changes
from dray.cli.asks.flags import settle_surroundings
from dray.core.model.specs.check import FIELDS, check_spec
from dray.errors import InvalidSpec, Problem

MAX_FILE_BYTES = 16 << 20
MAX_NODES = 1_000_000
KEYS = sorted({*FIELDS, *READERS, "either"} - {"function"})
# Scalars under these keys are taken as written, whatever YAML would make of them.
_AS_WRITTEN = {
    *(
        "id name type job_tier tier user user_id slot_pool gpu_type gpu_backend backend snapshot_id snapshot_sha"
    ).split(),
    *(
        "queue workload plugin deadline overlap workdir checkpoint time mem memory vram gpus gpus_per_node"
    ).split(),
    *("after array queue_timeout cpus device command prolog epilog require prefer").split(),
}
_TEXT_INSIDE = {"after", "env", "labels", "command", "prolog", "epilog", "require", "prefer"}
_STANDARD = "tag:yaml.org,2002:"
_NULL = f"{_STANDARD}null"
# A date stays text: JSON has none, and the hub would get whatever Python makes of it.
_KEPT_AS_TEXT = {f"{_STANDARD}{kind}" for kind in ("str", "timestamp", "value")}
_NUMBERS = {f"{_STANDARD}{kind}" for kind in ("int", "float", "bool")}
Marks = dict[tuple[str, ...], yaml.Mark]


class _Fault(NamedTuple):
    mark: yaml.Mark | None
    what: str


class JobFileError(InvalidSpec):
    """A job file with problems: a mistake in what was typed, like a wrong flag."""

    code = "invalid_job_file"
    exit_code = 2


def load_jobs(path: Path, flags: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the specs of a file, flags winning over it, or raise `JobFileError` with every problem."""
    name = str(path)
    text = _read_text(path)
    reader = _Reader(text)
    jobs: list[dict[str, Any]] = []
    for node in reader.jobs():
        spec = reader.read_job(node, flags)
        if spec is not None:
            jobs.append(spec)
    faults = sorted(
        reader.faults, key=lambda fault: (fault.mark.line, fault.mark.column) if fault.mark else (0, 0)
    )
    problems = [Problem(_place(name, fault.mark), fault.what) for fault in faults]
    if not problems and not jobs:
        problems = [Problem(name, "holds no job: give at least a command")]
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise JobFileError(f"{name} has {count}, nothing was submitted", problems)
    return jobs


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise JobFileError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: split it")
        return path.read_bytes().decode()
    except OSError as error:
        raise JobFileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise JobFileError(f"{path} is not UTF-8 text: byte {error.start} is {error.reason}") from None


def _place(name: str, mark: yaml.Mark | None) -> str:
    return name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"


class _Reader:
    """One pass over one file; collects faults instead of stopping at the first."""

    def __init__(self, text: str) -> None:
        self.faults: list[_Fault] = []
        self._loader = yaml.SafeLoader(text)
        self._count = 0

    def jobs(self) -> Iterator[yaml.Node]:
        """The node of each job; a syntax error ends the file, since nothing after it can be placed."""
        try:
            while self._loader.check_node():
                root = self._loader.get_node()
                if isinstance(root, yaml.SequenceNode):
                    yield from root.value
                elif root is not None and not (isinstance(root, yaml.ScalarNode) and root.tag == _NULL):
                    yield root
        except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as error:
            self._note_syntax(error)
        except RecursionError:
            self.faults.append(_Fault(None, "is nested too deeply to be a job file"))

    def read_job(self, node: yaml.Node, flags: Mapping[str, Any]) -> dict[str, Any] | None:
        before = len(self.faults)
        if not isinstance(node, yaml.MappingNode):
            self.faults.append(_Fault(node.start_mark, "a job must be written as keys and values"))
            return None
        marks: Marks = {}
        given = self._mapping(node, (), marks)
        self._check_keys(given, marks)
        either = given.pop("either", None)
        asks = read_asks(overlay(_drop_unknown(given), flags))
        alternatives = self._read_either(either, asks, marks)
        for problem in asks.problems:
            mark = marks.get((problem.where,), node.start_mark)
            self.faults.append(_Fault(mark, f"{problem.where}: {problem.what}"))
        settle_surroundings(asks.spec)
        self._check_spec(asks, marks, node, alternatives)
        return asks.spec if len(self.faults) == before else None

    def _check_keys(self, given: Mapping[str, Any], marks: Marks) -> None:
        for key in given:
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                self.faults.append(_Fault(marks[(key,)], f"{key!r} is not a key of a job{hint}"))

    def _read_either(self, either: Any, asks: Asks, marks: Marks) -> list[Asks]:
        """Read the alternatives of a job, written with the keys of a job, into the spec's `variants`."""
        if ("either",) not in marks:
            return []
        if not isinstance(either, list):
            self.faults.append(_Fault(marks[("either",)], "either: must be a list of alternatives"))
            return []
        if "variants" in asks.spec:
            self.faults.append(
                _Fault(marks[("either",)], "either: says the same as 'variants': give one of them")
            )
        nodes = asks.spec.get("node_count", 1)
        alternatives = []
        for number, given in enumerate(either):
            if not isinstance(given, dict):
                what = f"either[{number}] must be written as keys and values"
                self.faults.append(_Fault(marks[("either", str(number))], what))
                alternatives.append(Asks({}, {}, [Problem("either", "unreadable")]))
                continue
            known = {key: value for key, value in given.items() if value is not None}
            read = read_changes(known, nodes if isinstance(nodes, int) else 1)
            for problem in read.problems:
                mark = marks.get(("either", str(number), problem.where))
                self.faults.append(_Fault(mark, f"either[{number}].{problem.where}: {problem.what}"))
            alternatives.append(read)
        asks.spec["variants"] = [read.spec for read in alternatives]
        asks.sources["variants"] = "either"
        return alternatives

    def _note_variant(
        self, problem: Problem, alternatives: list[Asks], marks: Marks, node: yaml.Node
    ) -> None:
        """Point a problem of `variants[2].gpu_type` at the line under `either` that it came from."""
        place, _, field = problem.where.removeprefix("variants[").partition("]")
        read = alternatives[int(place)]
        if read.problems:
            return  # What could not be read has been reported: it must not count as missing too.
        head, dot, rest = field.removeprefix(".").partition(".")
        key = read.sources.get(head, head)
        mark = marks.get(("either", place, key)) or marks.get(("either", place)) or node.start_mark
        spelled = f"either[{place}]{f'.{key}' if key else ''}{dot}{rest}"
        self.faults.append(_Fault(mark, f"{spelled}: {problem.what}"))

    def _check_spec(self, asks: Asks, marks: Marks, node: yaml.Node, alternatives: list[Asks]) -> None:
        """Let core judge the fields; what could not even be read has been reported and must not count as missing."""
        broken = {FIELD_OF.get(problem.where, problem.where) for problem in asks.problems}
        try:
            check_spec(asks.spec)
        except InvalidSpec as error:
            for problem in error.problems:
                if problem.where.startswith("variants[") and alternatives:
                    self._note_variant(problem, alternatives, marks, node)
                    continue
                field, _, rest = problem.where.partition(".")
                if field in broken:
                    continue
                key = asks.sources.get(field, field)
                mark = marks.get((key, rest)) or marks.get((key,)) or node.start_mark
                self.faults.append(_Fault(mark, f"{key}{f'.{rest}' if rest else ''}: {problem.what}"))

    def _mapping(self, node: yaml.MappingNode, path: tuple[str, ...], marks: Marks) -> dict[str, Any]:
        self._find_duplicates(node)
        try:
            self._loader.flatten_mapping(node)
        except yaml.MarkedYAMLError as error:
            self._note_syntax(error)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(_Fault(key_node.start_mark, "a key must be plain text"))
                continue
            here = (*path, key_node.value)
            marks[here] = key_node.start_mark
            result[key_node.value] = self._value(value_node, here, marks)
        return result

    def _value(self, node: yaml.Node, path: tuple[str, ...], marks: Marks) -> Any:
        self._count += 1
        if self._count > MAX_NODES or len(path) > 32:
            if self._count <= MAX_NODES + 1:
                self.faults.append(
                    _Fault(node.start_mark, "the file unfolds to more than a job file may hold")
                )
            self._count = MAX_NODES + 1
            return None
        if isinstance(node, yaml.MappingNode):
            if node.tag != f"{_STANDARD}map":
                self._note_tag(node)
            return self._mapping(node, path, marks)
        if isinstance(node, yaml.SequenceNode):
            if node.tag != f"{_STANDARD}seq":
                self._note_tag(node)
            marks |= {(*path, str(index)): item.start_mark for index, item in enumerate(node.value)}
            return [self._value(item, (*path, str(index)), marks) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: tuple[str, ...]) -> Any:
        if path[0] == "either":
            path = path[2:] or path
        in_text = (len(path) == 1 and path[0] in _AS_WRITTEN) or (len(path) == 2 and path[0] in _TEXT_INSIDE)
        if node.tag == _NULL:
            return "" if len(path) == 2 and path[0] in _TEXT_INSIDE else None
        if node.tag in _KEPT_AS_TEXT or (in_text and node.tag in _NUMBERS):
            return node.value
        if node.tag not in _NUMBERS:
            self._note_tag(node)
            return None
        try:
            value = self._loader.construct_object(node)
        except (yaml.MarkedYAMLError, ValueError) as error:
            self.faults.append(_Fault(node.start_mark, f"{node.value!r} cannot be read: {error}"))
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.faults.append(_Fault(node.start_mark, f"must be a finite number, got {node.value}"))
            return None
        return value

    def _note_tag(self, node: yaml.Node) -> None:
        tag = node.tag.replace(_STANDARD, "!!")
        self.faults.append(
            _Fault(node.start_mark, f"the tag {tag} has no meaning in a job file: leave it out")
        )

    def _find_duplicates(self, node: yaml.MappingNode) -> None:
        """Before merge keys are unfolded: a merged key may be overridden, a written one may not be repeated."""
        seen: dict[str, yaml.Mark] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            first = seen.setdefault(key_node.value, key_node.start_mark)
            if first is not key_node.start_mark:
                what = f"{key_node.value!r} is given twice, first in line {first.line + 1}"
                self.faults.append(_Fault(key_node.start_mark, what))

    def _note_syntax(self, error: yaml.YAMLError) -> None:
        if isinstance(error, yaml.MarkedYAMLError):
            what = " ".join(part for part in (error.context, error.problem) if part)
            self.faults.append(
                _Fault(error.problem_mark or error.context_mark, f"this is not valid YAML: {what}")
            )
        else:
            self.faults.append(_Fault(None, f"is not valid YAML: {str(error).splitlines()[0]}"))


def _drop_unknown(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in KEYS and value is not None}
