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
from typing import Any

import yaml

from dray.cli.asks.fields import (
    FIELD_OF,
    READERS,
    JobFileError,
    overlay,
    read_asks,
    read_changes,
    refuse_file,
)
from dray.cli.asks.flags import settle_surroundings
from dray.core.model.specs.asks import Asks
from dray.core.model.specs.check import FIELDS, check_spec
from dray.errors import InvalidSpec, Problem
from dray.marked_yaml import COLLECTIONS, NULL, NUMBERS, TEXTS, MarkedYaml, Place, read_text

MAX_FILE_BYTES = 16 << 20
MAX_NODES = 1_000_000
KEYS = sorted({*FIELDS, *READERS, "either"} - {"function", "rendered"})
# Scalars under these keys are taken as written, whatever YAML would make of them.
_AS_WRITTEN = {
    *(
        "id name type job_tier tier user user_id slot_pool gpu_type gpu_backend backend snapshot_id snapshot_sha"
    ).split(),
    *(
        "queue workload plugin deadline overlap snapshot workdir checkpoint time mem memory vram gpus gpus_per_node"
    ).split(),
    *(
        "after array queue_timeout cpus device command prolog epilog require prefer notify notify_to template ports"
    ).split(),
}
_TEXT_INSIDE = {
    "after",
    "params",
    "env",
    "labels",
    "command",
    "prolog",
    "epilog",
    "require",
    "prefer",
    "notify",
    "notify_to",
    "ports",
}
Marks = dict[Place, yaml.Mark]


def load_jobs(path: Path, flags: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the specs of a file, flags winning over it, or raise `JobFileError` with every problem."""
    name = str(path)
    reader = JobReader(read_text(path, MAX_FILE_BYTES, "split it", JobFileError))
    jobs: list[dict[str, Any]] = []
    for node in reader.jobs():
        spec = reader.read_job(node, flags)
        if spec is not None:
            jobs.append(spec)
    problems = reader.problems(name)
    if not problems and not jobs:
        problems = [Problem(name, "holds no job: give at least a command")]
    if problems:
        raise refuse_file(name, problems)
    return jobs


class JobReader(MarkedYaml):
    """One job file, or what is written like one."""

    what, called, most, deepest = "job file", "key", MAX_NODES, 32
    _overflowed = False

    def jobs(self) -> Iterator[yaml.Node]:
        """The node of each job; a syntax error ends the file, since nothing after it can be placed."""
        try:
            loader = self.start()
            while loader.check_node():
                root = loader.get_node()
                if isinstance(root, yaml.SequenceNode):
                    yield from root.value
                elif root is not None and not (isinstance(root, yaml.ScalarNode) and root.tag == NULL):
                    yield root
        except (yaml.MarkedYAMLError, yaml.reader.ReaderError, RecursionError) as error:
            self.note_syntax(error)

    def read_job(self, node: yaml.Node, flags: Mapping[str, Any]) -> dict[str, Any] | None:
        before = self.count_faults()
        if not isinstance(node, yaml.MappingNode):
            self.note(node.start_mark, "a job must be written as keys and values")
            return None
        marks = self.marks = {}
        given = self.mapping(node, ())
        self._check_keys(given, marks)
        either = given.pop("either", None)
        asks = read_asks(overlay(_drop_unknown(given), flags))
        alternatives = self._read_either(either, asks, marks)
        for problem in asks.problems:
            mark = marks.get((problem.where,), node.start_mark)
            self.note(mark, f"{problem.where}: {problem.what}")
        settle_surroundings(asks.spec)
        self._check_spec(asks, marks, node, alternatives)
        return asks.spec if self.count_faults() == before else None

    def _check_keys(self, given: Mapping[str, Any], marks: Marks) -> None:
        for key in given:
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                self.note(marks[(key,)], f"{key!r} is not a key of a job{hint}")

    def _read_either(self, either: Any, asks: Asks, marks: Marks) -> list[Asks]:
        """Read the alternatives of a job, written with the keys of a job, into the spec's `variants`."""
        if ("either",) not in marks:
            return []
        if not isinstance(either, list):
            self.note(marks[("either",)], "either: must be a list of alternatives")
            return []
        if "variants" in asks.spec:
            self.note(marks[("either",)], "either: says the same as 'variants': give one of them")
        nodes = asks.spec.get("node_count", 1)
        alternatives = []
        for number, given in enumerate(either):
            if not isinstance(given, dict):
                what = f"either[{number}] must be written as keys and values"
                self.note(marks[("either", number)], what)
                alternatives.append(Asks({}, {}, [Problem("either", "unreadable")]))
                continue
            known = {key: value for key, value in given.items() if value is not None}
            read = read_changes(known, nodes if isinstance(nodes, int) else 1)
            for problem in read.problems:
                mark = marks.get(("either", number, problem.where))
                self.note(mark, f"either[{number}].{problem.where}: {problem.what}")
            alternatives.append(read)
        asks.spec["variants"] = [read.spec for read in alternatives]
        asks.sources["variants"] = "either"
        return alternatives

    def _note_variant(
        self, problem: Problem, alternatives: list[Asks], marks: Marks, node: yaml.Node
    ) -> None:
        """Point a problem of `variants[2].gpu_type` at the line under `either` that it came from."""
        number, _, field = problem.where.removeprefix("variants[").partition("]")
        place = int(number)
        read = alternatives[place]
        if read.problems:
            return  # What could not be read has been reported: it must not count as missing too.
        head, dot, rest = field.removeprefix(".").partition(".")
        key = read.sources.get(head, head)
        mark = marks.get(("either", place, key)) or marks.get(("either", place)) or node.start_mark
        spelled = f"either[{place}]{f'.{key}' if key else ''}{dot}{rest}"
        self.note(mark, f"{spelled}: {problem.what}")

    def _check_spec(self, asks: Asks, marks: Marks, node: yaml.Node, alternatives: list[Asks]) -> None:
        """Let core judge the fields; what could not even be read has been reported and must not count as missing.

        What a template makes of a job only the hub knows, and judges.
        """
        if "template" in asks.sources:
            return
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
                self.note(mark, f"{key}{f'.{rest}' if rest else ''}: {problem.what}")

    def overflow(self, node: yaml.Node) -> Any:
        if not self._overflowed:
            self.note(node.start_mark, "the file unfolds to more than a job file may hold")
        self._overflowed = True

    def value(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.CollectionNode) and node.tag not in COLLECTIONS:
            self.note_tag(node)
        return super().value(node, place)

    def scalar(self, node: yaml.Node, place: Place) -> Any:
        path = place
        if path[0] == "either":
            path = path[2:] or path
        in_text = (len(path) == 1 and path[0] in _AS_WRITTEN) or (len(path) == 2 and path[0] in _TEXT_INSIDE)
        if node.tag == NULL:
            return "" if len(path) == 2 and path[0] in _TEXT_INSIDE else None
        if node.tag in TEXTS or (in_text and node.tag in NUMBERS):
            return node.value
        if node.tag not in NUMBERS:
            self.note_tag(node)
            return None
        try:
            value = self.loader.construct_object(node)
        except (yaml.MarkedYAMLError, ValueError) as error:
            self.note(node.start_mark, f"{node.value!r} cannot be read: {error}")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.note(node.start_mark, f"must be a finite number, got {node.value}")
            return None
        return value


def _drop_unknown(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in KEYS and value is not None}
