"""The tools that programs are given: one row each, over operations of the hub's own table.

A row names the operation, so that who may and what it costs are the hub's to say; what changes anything is offered
only to a token that may, and does nothing unless it is told `dry_run: false`. The surprising rule: these tools speak
HTTP as every other client does; the table is read for names, scopes and words alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from dray.cli.asks.fields import read_asks
from dray.cli.assistants import answers
from dray.cli.base.hub import Hub
from dray.core.model.ids import ID_PATTERN
from dray.core.model.records.records import JobState
from dray.errors import InvalidInput
from dray.hub.operations.table import OPERATIONS

Schema = dict[str, Any]
Given = Mapping[str, Any]
MOST_LINES, MOST_CHARS, MOST_SHOWN = 500, 20_000, 50
_ID: Schema = {"type": "string", "pattern": f"^{ID_PATTERN}$", "description": "id of the job"}
_TASK: Schema = {"type": "integer", "minimum": 0, "description": "index of the task; its only one by default"}
_CURSOR: Schema = {
    "type": "string",
    "pattern": "^[0-9]{1,18}$",
    "description": "next_cursor of the page before",
}
_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_SHOWN, "default": 20}
_DRY: Schema = {
    "type": "boolean",
    "default": True,
    "description": "true: only tell what it would come to; false: do it",
}
_TEXT: Schema = {"type": "string", "maxLength": 256}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1000}
_JOB: dict[str, Schema] = {
    "command": _TEXTS | {"description": 'program and arguments, no shell: ["python", "train.py"]'},
    "name": _TEXT | {"description": "jobs of one name are learnt from together"},
    "cpus": {"type": "number", "minimum": 0, "default": 1},
    "mem": _TEXT | {"description": "such as 8G"},
    "gpus": {"type": ["integer", "string"], "description": "a number, or TYPE:N such as A100:2"},
    "vram": _TEXT | {"description": "of each card, such as 40G"},
    "nodes": {"type": "integer", "minimum": 1},
    "time": _TEXT | {"description": "time limit, such as 30m or 2h"},
    "array": _TEXT | {"description": "indices, such as 0-9, at most 3 at once: 0-9%3"},
    "after": _TEXTS | {"description": "conditions such as ok:JOB"},
    "queue": _TEXT,
    "priority": {"type": "integer"},
    "tier": _TEXT,
    "deadline": _TEXT | {"description": "+2h, or 2030-01-31T18:00:00Z"},
    "objective": _TEXT | {"description": "cheapest_in_time, or weights such as cost=3,reliability=1"},
    "env": {"type": "object", "additionalProperties": {"type": "string"}},
    "workdir": _TEXT | {"description": "folder on the worker"},
    "require": _TEXTS | {"description": "worker labels, such as zone=a"},
    "workload": _TEXT,
}


class Tool(NamedTuple):
    """One tool. `changes`: it does something, and is offered to tokens with one of the operation's scopes only."""

    name: str
    operation: str
    about: str
    fields: dict[str, Schema]
    required: tuple[str, ...]
    answer: type[Any]
    call: Callable[[Hub, Given], Any]
    changes: bool = False

    @property
    def scopes(self) -> tuple[str, ...]:
        """Which tokens may."""
        return OPERATIONS[self.operation].scopes

    @property
    def description(self) -> str:
        """What it does, in the words of the table and its own."""
        return f"{OPERATIONS[self.operation].about}. {self.about}".strip()

    def input_schema(self) -> Schema:
        """What it takes."""
        return {
            "type": "object",
            "properties": self.fields,
            "required": list(self.required),
            "additionalProperties": False,
        }

    def output_schema(self) -> Schema:
        """What it answers, with its parts in it."""
        (schema,), parts = msgspec.json.schema_components([self.answer], ref_template="#/$defs/{name}")
        root = parts.pop(self.answer.__name__) if "$ref" in schema else schema
        return dict(root) | ({"$defs": parts} if parts else {})


def _path(given: Given, rest: str = "") -> str:
    return f"/jobs/{quote(str(given['id']), safe='')}{rest}"


def _pick(given: Given, *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name) is not None}


def _queues(hub: Hub, given: Given) -> Any:
    return hub.get("/queues")


def _list_jobs(hub: Hub, given: Given) -> Any:
    return hub.get(
        "/jobs", {"limit": 20, **_pick(given, "state", "user", "queue", "name", "cursor", "limit")}
    )


def _status(hub: Hub, given: Given) -> Any:
    wait_s = min(60.0, float(given.get("wait_s") or 0))
    return hub.get(_path(given), {"wait_s": wait_s} if wait_s else None, extra_s=wait_s)


def _why(hub: Hub, given: Given) -> Any:
    return hub.get(_path(given, "/why"))


def _tasks(hub: Hub, given: Given) -> Any:
    return hub.get(_path(given, "/tasks"), {"limit": 20, **_pick(given, "state", "cursor", "limit")})


def _logs(hub: Hub, given: Given) -> Any:
    query = {"tail": 100, **_pick(given, "task", "attempt", "stream", "tail")}
    with hub.stream(_path(given, "/logs"), query) as stream:
        text, kept = "", True
        for chunk in stream.chunks():
            text += chunk.decode("utf-8", "replace")
            if len(text) > MOST_CHARS:
                text, kept = text[-MOST_CHARS:], False
    return {"text": text, "cut": not kept}


def _results(hub: Hub, given: Given) -> Any:
    job = hub.get(_path(given))
    bad = [one.value for one in JobState if one.final and one is not JobState.SUCCEEDED]
    page = hub.get(_path(given, "/tasks"), {"limit": 10, "state": ",".join(bad)})
    numbered = (job.get("tasks") or {}).get("total", 1) != 1
    first = page["tasks"][0]["index"] if page["tasks"] else None
    task = {"task": first} if numbered and first is not None else {}
    text = _logs(hub, {"id": given["id"], "tail": 40, **task})["text"] if task or not numbered else ""
    told = {"state": job["state"], "tasks": job.get("tasks") or {}, "money": job.get("money", 0)}
    return told | {"unsuccessful": page["tasks"], "text": text}


def _spec(given: Given) -> dict[str, Any]:
    asked = {name: given[name] for name in _JOB if given.get(name) is not None}
    read = read_asks({"cpus": 1} | asked)
    if read.problems:
        first = read.problems[0]
        raise InvalidInput(f"{first.where}: {first.what}", read.problems)
    return dict(read.spec)


def _plan(hub: Hub, given: Given) -> Any:
    return hub.call("POST", "/plan", body=_spec(given))


def _rank(hub: Hub, given: Given) -> Any:
    return hub.call("POST", "/providers/rank", body=_spec(given))


def _submit(hub: Hub, given: Given) -> Any:
    if given.get("dry_run", True):
        return {"dry_run": True, "plan": _plan(hub, given)}
    key = given.get("key")
    spec = _spec(given) | _pick(given, "id")
    job = hub.call("POST", "/jobs", body=spec, headers={"Idempotency-Key": str(key)} if key else None)
    return {"dry_run": False, **_pick(job, "id", "state", "note")}


def _act(action: str) -> Callable[[Hub, Given], Any]:
    def call(hub: Hub, given: Given) -> Any:
        body = {"action": action, "ids": given["ids"], "dry_run": bool(given.get("dry_run", True))}
        return hub.call("POST", "/jobs:act", body=body | _pick(given, "grace_s"))

    return call


def _changing(name: str, about: str) -> Tool:
    ids = {"type": "array", "items": _ID, "minItems": 1, "maxItems": 100, "description": "ids of jobs"}
    return Tool(
        name, "act_on_jobs", about, {"ids": ids, "dry_run": _DRY}, ("ids",), answers.Acted, _act(name), True
    )


_STATES = {
    "type": "string",
    "description": f"only these, with commas: {', '.join(one.value for one in JobState)}",
}
TOOLS = (
    Tool("queue_state", "list_queues", "", {}, (), answers.QueueState, _queues),
    Tool(
        "list_jobs",
        "list_jobs",
        "",
        {"state": _STATES, "user": _TEXT, "queue": _TEXT, "name": _TEXT, "limit": _LIMIT, "cursor": _CURSOR},
        (),
        answers.JobPage,
        _list_jobs,
    ),
    Tool(
        "job_status",
        "show_job",
        "Waits up to wait_s seconds for its end.",
        {"id": _ID, "wait_s": {"type": "number", "minimum": 0, "maximum": 60, "default": 0}},
        ("id",),
        answers.JobStatus,
        _status,
    ),
    Tool("why", "explain_job", "With the smallest change that would start it now.", {"id": _ID}, ("id",),
         answers.WhyAnswer, _why),
    Tool("tasks", "list_tasks", "", {"id": _ID, "state": _STATES, "limit": _LIMIT, "cursor": _CURSOR}, ("id",),
         answers.TaskPage, _tasks),
    Tool(
        "logs",
        "read_logs",
        "The last lines of one task.",
        {
            "id": _ID,
            "task": _TASK,
            "attempt": {"type": "integer", "minimum": 0, "description": "the newest by default"},
            "stream": {"type": "string", "enum": ["stdout", "stderr", "both"], "default": "both"},
            "tail": {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": 100},
        },
        ("id",),
        answers.Output,
        _logs,
    ),
    Tool("results", "list_tasks", "How a job ended, with why what failed did.", {"id": _ID}, ("id",),
         answers.Results, _results),
    Tool("plan", "plan_job", "With the choice between providers by money and time.", _JOB, ("command",),
         answers.PlanAnswer, _plan),
    Tool("rank_providers", "rank_providers", "", _JOB, ("command",), answers.Ranking, _rank),
    Tool(
        "submit",
        "submit_job",
        "Plans it only, unless dry_run is false; with a key the same call submits once.",
        {**_JOB, "id": _ID, "key": _TEXT | {"description": "idempotency key"}, "dry_run": _DRY},
        ("command",),
        answers.Submitted,
        _submit,
        True,
    ),
    _changing("cancel", "Stops jobs for good."),
    _changing("hold", "Keeps jobs that wait from starting until they are released."),
    _changing("release", "Lets held jobs start."),
)  # fmt: skip
