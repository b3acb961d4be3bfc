"""The policy as a YAML file: read to a `Policy`, or to every problem of it with line and column.

Read by the hub at its start and by whoever applies a file to a running hub. Knows nothing about what is in force.
Reads nodes instead of values, because only nodes know where they stand.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import Policy
from dray.errors import InvalidPolicy, Problem

FILE_NAME = "policy.yaml"
MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 200_000
MAX_DEPTH = 16
_PLAIN = "tag:yaml.org,2002:"
# A date stays text: no value of a policy is one.
_TEXTS = {f"{_PLAIN}{kind}" for kind in ("str", "timestamp", "value")}
_OTHERS = {f"{_PLAIN}{kind}" for kind in ("int", "float", "bool", "null")}


class PolicyFileError(InvalidPolicy):
    """A policy file with problems: a mistake in what was written, like a wrong flag."""

    exit_code = 2


class PolicyFile(NamedTuple):
    """What a file says, as a document and as a policy; `digest` names its content."""

    document: dict[str, Any]
    policy: Policy
    digest: str


def read_policy_file(path: Path) -> PolicyFile:
    """Read a file, or raise `PolicyFileError` with every problem at its line."""
    name = str(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PolicyFileError(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB: no policy needs that")
        content = path.read_bytes()
        text = content.decode()
    except OSError as error:
        raise PolicyFileError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"{name} is not UTF-8 text: byte {error.start} is {error.reason}") from None
    document, policy = read_policy_text(text, name)
    return PolicyFile(document, policy, hashlib.sha256(content).hexdigest())


def find_policy_file(home: Path) -> PolicyFile | None:
    """The policy file of a home, where there is one."""
    path = home / FILE_NAME
    return read_policy_file(path) if path.exists() else None


def read_policy_text(text: str, name: str) -> tuple[dict[str, Any], Policy]:
    """Read YAML as a policy; `name` is what problems call it."""
    reader = _Reader(text)
    document = reader.read()
    policy = Policy()
    if not reader.stopped:
        try:
            policy = check_policy(document)
        except InvalidPolicy as fault:
            for problem in fault.problems:
                reader.note(reader.find(problem.where), f"{problem.where}: {problem.what}")
    if reader.faults:
        faults = sorted(reader.faults, key=lambda fault: _position(fault.mark))
        problems = [Problem(_place(name, fault.mark), fault.what) for fault in faults]
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise PolicyFileError(f"{name} has {count}, nothing was changed", problems)
    return document or {}, policy


class _Fault(NamedTuple):
    mark: yaml.Mark | None
    what: str


class _Reader:
    """One pass over one file; collects faults and remembers where each value stands."""

    def __init__(self, text: str) -> None:
        self.faults: list[_Fault] = []
        self.stopped = False
        self._text = text
        self._marks: dict[str, yaml.Mark] = {}
        self._count = 0

    def read(self) -> Any:
        try:
            # Its constructor refuses characters that YAML does not know.
            self._loader = yaml.SafeLoader(self._text)
            root = self._loader.get_single_node()
            return None if root is None else self._value(root, "", 0)
        except yaml.MarkedYAMLError as error:
            what = " ".join(part for part in (error.context, error.problem) if part)
            self._stop(error.problem_mark or error.context_mark, f"this is not valid YAML: {what}")
        except yaml.reader.ReaderError as error:
            self._stop(None, f"is not valid YAML: {str(error).splitlines()[0]}")
        except RecursionError:
            self._stop(None, "is nested too deeply to be a policy")
        return None

    def note(self, mark: yaml.Mark | None, what: str) -> None:
        self.faults.append(_Fault(mark, what))

    def find(self, where: str) -> yaml.Mark | None:
        """Where a value stands; where it is missing, where the entry around it does."""
        while where and where not in self._marks:
            where = where[: max(where.rfind("."), where.rfind("["), 0)]
        return self._marks.get(where)

    def _stop(self, mark: yaml.Mark | None, what: str) -> None:
        self.stopped = True
        self.note(mark, what)

    def _value(self, node: yaml.Node, where: str, depth: int) -> Any:
        self._marks.setdefault(where, node.start_mark)
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem="it unfolds to more than a policy holds", problem_mark=node.start_mark
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where, depth)
        if isinstance(node, yaml.SequenceNode):
            return [
                self._value(item, f"{where}[{place}]", depth + 1) for place, item in enumerate(node.value)
            ]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, where: str, depth: int) -> dict[Any, Any]:
        self._find_duplicates(node)
        self._loader.flatten_mapping(node)
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.note(key_node.start_mark, "a name must be plain text")
                continue
            # A name is what is written: `no:` is a queue called no.
            key = key_node.value
            here = f"{where}.{key[:64]}" if where else key[:64]
            self._marks[here] = key_node.start_mark
            found[key] = self._value(value_node, here, depth + 1)
        return found

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

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag in _TEXTS:
            return node.value
        if node.tag not in _OTHERS:
            tag = node.tag.replace(_PLAIN, "!!")
            self.note(node.start_mark, f"the tag {tag} has no meaning in a policy: leave it out")
            return None
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            self.note(node.start_mark, f"{node.value[:64]!r} cannot be read: {error}")
            return None


def _position(mark: yaml.Mark | None) -> tuple[int, int]:
    return (mark.line, mark.column) if mark is not None else (0, 0)


def _place(name: str, mark: yaml.Mark | None) -> str:
    return name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
