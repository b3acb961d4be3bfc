"""Files of workloads: a job file with a head. What `defaults` says is laid under each job of the file, key by key.

A job may name another one of the file in `after`: jobs with a name go by the id WORKLOAD-NAME, so that the same file
sent again makes nothing twice. The surprising rule: a job that says `gpus: 0` takes nothing else about cards from the
defaults either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.cli.asks.fields import JobFileError, read_changes, refuse_file
from dray.cli.asks.jobfile import MAX_FILE_BYTES, JobReader
from dray.core.model.specs.dependency import KINDS
from dray.core.model.workloads.check import check_terms
from dray.errors import InvalidInput, InvalidSpec
from dray.marked_yaml import read_text

HEAD = (
    "workload title members queue priority labels deadline budget width failures distribution objective defaults jobs"
).split()
_OF_CARDS = {
    "gpus",
    "gpus_per_node",
    "gpu_count",
    "gpu_type",
    "gpu_backend",
    "gpu_milli",
    "vram",
    "min_vram_gb",
}
_OF_HEAD = ("queue", "priority", "deadline", "labels")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


class WorkloadFile(NamedTuple):
    """What a file says: the id, the terms as the hub takes them, the jobs."""

    name: str
    terms: dict[str, Any]
    jobs: list[dict[str, Any]]


def read_share(text: Any) -> Any:
    """`5%` as 0.05; anything else is for the check to judge."""
    match = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is not None:
        return float(match[1]) / 100
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


def is_workload_file(path: Path) -> bool:
    """Whether a file has the head of a workload."""
    try:
        root = yaml.compose(read_text(path, MAX_FILE_BYTES, "split it", JobFileError), Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    return isinstance(root, yaml.MappingNode) and any(
        key.value in ("workload", "jobs") for key, _ in root.value
    )


def load_workload(path: Path, flags: Mapping[str, Any], name: str = "") -> WorkloadFile:
    """Read a file, or raise `JobFileError` with every problem at its line."""
    reader = _Reader(read_text(path, MAX_FILE_BYTES, "split it", JobFileError))
    found = reader.read_file(flags, name)
    if problems := reader.problems(str(path)):
        raise refuse_file(str(path), problems)
    return found


class _Reader(JobReader):
    """A job file whose root is the head of a workload."""

    what = "workload file"

    def read_file(self, flags: Mapping[str, Any], name: str) -> WorkloadFile:
        nothing = WorkloadFile(name, {}, [])
        try:
            root = self.start().get_single_node()
        except (yaml.MarkedYAMLError, yaml.reader.ReaderError, RecursionError) as error:
            self.note_syntax(error)
            return nothing
        if not isinstance(root, yaml.MappingNode):
            self.note(getattr(root, "start_mark", None), "a workload must be written as keys and values")
            return nothing
        nodes = {key.value: (key, value) for key, value in root.value if isinstance(key, yaml.ScalarNode)}
        for word, (key, _) in nodes.items():
            if word not in HEAD:
                self.note(key.start_mark, f"{word!r} is not a key of a workload: it has {', '.join(HEAD)}")
        defaults = self._read_defaults(nodes)
        terms = self._read_terms(root, nodes, defaults)
        known = name or str(terms.pop("workload", "") or "")
        terms.pop("workload", None)
        if not known:
            self.note(root.start_mark, "workload: is missing: the id of the workload")
        return WorkloadFile(known, terms, self._read_jobs(nodes, flags, known))

    def _read_defaults(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        key, node = nodes.get("defaults", (None, None))
        if not isinstance(node, yaml.MappingNode):
            if node is not None and key is not None:
                self.note(key.start_mark, "defaults: must be keys and values of a job")
            return {}
        self.marks = {}
        given = self.mapping(node, ())
        self._check_keys(given, self.marks)
        asks = read_changes({word: value for word, value in given.items() if value is not None})
        for problem in asks.problems:
            self.note(
                self.marks.get((problem.where,), node.start_mark), f"defaults.{problem.where}: {problem.what}"
            )
        return asks.spec

    def _read_terms(
        self, root: yaml.MappingNode, nodes: Mapping[str, Any], defaults: dict[str, Any]
    ) -> dict[str, Any]:
        head = yaml.MappingNode(
            root.tag,
            [pair for pair in root.value if pair[0].value not in ("jobs", "defaults")],
            root.start_mark,
            root.end_mark,
        )
        marks: dict[Any, yaml.Mark] = {}
        self.marks = marks
        terms = {
            word: value
            for word, value in self.mapping(head, ()).items()
            if value is not None and word in HEAD
        }
        terms.update(
            {word: defaults.pop(word) for word in _OF_HEAD if word in defaults and word not in terms}
        )
        if "failures" in terms:
            terms["failures"] = read_share(terms["failures"])
        if isinstance(terms.get("deadline"), str):
            try:
                terms |= read_changes({"deadline": terms["deadline"]}).spec
            except InvalidInput as error:
                self.note(marks.get(("deadline",)), f"deadline: {error.message}")
        if defaults:
            terms["defaults"] = defaults
        try:
            check_terms({word: value for word, value in terms.items() if word != "workload"})
        except InvalidSpec as fault:
            for problem in fault.problems:
                place = tuple(problem.where.split("."))
                mark = marks.get(place) or marks.get(place[:1])
                if mark is None and place[0] in nodes:
                    mark = nodes[place[0]][0].start_mark
                self.note(mark or root.start_mark, f"{problem.where}: {problem.what}")
        return terms

    def _read_jobs(
        self, nodes: Mapping[str, Any], flags: Mapping[str, Any], name: str
    ) -> list[dict[str, Any]]:
        key, node = nodes.get("jobs", (None, None))
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.note(key.start_mark, "jobs: must be a list of jobs")
            return []
        defaults = nodes.get("defaults", (None, None))[1]
        under = defaults.value if isinstance(defaults, yaml.MappingNode) else []
        jobs = []
        for one in node.value:
            laid = _lay_under(one, under) if isinstance(one, yaml.MappingNode) else one
            spec = self.read_job(laid, flags)
            if spec is not None:
                if isinstance(one, yaml.MappingNode) and _is_blank(one):
                    spec["gpu_count"] = 0
                jobs.append(spec)
        _name_jobs(jobs, name)
        return jobs

    def _check_spec(self, asks: Any, marks: Any, node: yaml.Node, alternatives: Any) -> None:
        # What it waits for may be named as the file names it: that is settled once all of them are read.
        after = asks.spec.pop("after", None)
        super()._check_spec(asks, marks, node, alternatives)
        if after is not None:
            asks.spec["after"] = after


def _lay_under(job: yaml.MappingNode, under: list[Any]) -> yaml.MappingNode:
    own = {key.value: value for key, value in job.value if isinstance(key, yaml.ScalarNode)}
    left_out = {*own, *_OF_HEAD} | (_OF_CARDS if _is_blank(job) else set())
    more = [pair for pair in under if pair[0].value not in left_out]
    return yaml.MappingNode(job.tag, [*more, *job.value], job.start_mark, job.end_mark)


def _is_blank(job: yaml.MappingNode) -> bool:
    """Whether it says that it wants no cards."""
    return any(key.value in ("gpus", "gpu_count") and value.value == "0" for key, value in job.value)


def _name_jobs(jobs: list[dict[str, Any]], name: str) -> None:
    """Give jobs with a name of their own in the file an id, and find those ids in what others wait for."""
    names = [str(job.get("name", "")) for job in jobs]
    ids = {word: f"{name}-{word}" for word in names if word and names.count(word) == 1}
    for job in jobs:
        if "id" not in job and job.get("name", "") in ids:
            job["id"] = ids[job["name"]]
        else:
            ids.pop(str(job.get("name", "")), None)
        after = job.get("after")
        if isinstance(after, list):
            job["after"] = [_need(text, ids) for text in after]


def _need(text: Any, ids: Mapping[str, str]) -> Any:
    if not isinstance(text, str):
        return text
    condition, mark, word = text.rpartition(":")
    if word in ids and (not mark or condition in KINDS):
        return f"{condition or 'ok'}:{ids[word]}"
    return text
