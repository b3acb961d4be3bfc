"""The policy as a YAML file: read to a `Policy`, or to every problem of it with line and column.

Read by the hub at its start and by whoever applies a file to a running hub. Knows nothing about what is in force.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import Policy
from dray.errors import InvalidPolicy
from dray.marked_yaml import MarkedYaml, Place, read_text

FILE_NAME = "policy.yaml"
MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 200_000
MAX_DEPTH = 16


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
    text = read_text(path, MAX_FILE_BYTES, "no policy needs that", PolicyFileError)
    document, policy = read_policy_text(text, str(path))
    return PolicyFile(document, policy, hashlib.sha256(text.encode()).hexdigest())


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
    if problems := reader.problems(name):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise PolicyFileError(f"{name} has {count}, nothing was changed", problems)
    return document or {}, policy


class _Reader(MarkedYaml):
    what, called, most, deepest = "policy", "name", MAX_VALUES, MAX_DEPTH

    def find(self, where: str) -> yaml.Mark | None:
        """Where a value stands; where it is missing, where the entry around it does."""
        while where and where not in self._spelled:
            where = where[: max(where.rfind("."), where.rfind("["), 0)]
        return self._spelled.get(where)

    @cached_property
    def _spelled(self) -> dict[str, yaml.Mark]:
        return {_spell(place): mark for place, mark in self.marks.items()}


def _spell(place: Place) -> str:
    """A place as checks name it, such as `quotas[1].gpus`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in place).removeprefix(
        "."
    )
