"""From a command line to jobs at the hub: what is to be submitted, and sending it so that it happens once.

Every submission carries an idempotency key, so that asking again after a broken connection is safe. The surprising
rule: a word that ends in .yaml is a job file, and one that names a batch script here is read for what Slurm would read
in it, unless `--` says that a command follows.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from dray.cli.asks.fields import overlay, read_asks, read_changes
from dray.cli.asks.flags import name_flags, read_flags, settle_surroundings
from dray.cli.asks.snapshots import bring_folders
from dray.cli.base.exit_codes import has_ended
from dray.cli.base.hub import Hub, HubAway, HubRefusal, job_path
from dray.cli.base.invocation import HubCommand
from dray.cli.base.outage import Outage, say
from dray.core.model.specs.again import again_spec
from dray.core.model.specs.asks import Asks
from dray.core.model.units import parse_bytes
from dray.errors import InvalidInput, Problem

RETRY_S = 30.0
_DASHES = "dray.dashes"
# Other tools take their files so.
_FILE_FLAGS = ("-f", "--file")


class Submission(NamedTuple):
    """The specs, the key, and how the fields got their values (None: from a job file, which was checked already)."""

    specs: list[dict[str, Any]]
    key: str
    asks: Asks | None
    snapshot_bytes: int = 0


class SubmitCommand(HubCommand):
    """Stops reading flags at the command's name; after the name of a job file it goes on reading them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_DASHES] = "--" in args
        ctx.allow_interspersed_args = False
        if "--" not in args:
            # What is wrong with the flags is raised by the parsing proper, which knows the usage to show.
            with contextlib.suppress(click.UsageError):
                words = self.make_parser(ctx).parse_args(list(args))[0].get("words")
                ctx.allow_interspersed_args = isinstance(words, tuple) and _is_job_file(str(words[0]))
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Here, since only who types what there is not waits for it.
            from dray.cli.asks.slurm_options import hint_of

            hint = hint_of(error.option_name)
            if error.option_name in _FILE_FLAGS:
                hint = f"A job file needs none: `{ctx.command_path} FILE.yaml`"
            if hint:
                raise click.UsageError(f"No such option: {error.option_name}. {hint}", ctx) from None
            raise


def prepare(context: click.Context, words: Sequence[str], flags: Mapping[str, Any]) -> Submission:
    """Read flags and files; whatever is wrong with them is a usage error that lists everything."""
    limit = flags.get("snapshot_limit")
    try:
        most = parse_bytes(limit) if limit else 0
    except InvalidInput as fault:
        raise click.UsageError(f"--snapshot-limit: {fault.message}", context) from None
    return _prepare(context, words, flags)._replace(snapshot_bytes=most)


def _prepare(context: click.Context, words: Sequence[str], flags: Mapping[str, Any]) -> Submission:
    given, problems = read_flags(flags)
    key = flags.get("key") or uuid.uuid4().hex
    if words and not context.meta.get(_DASHES) and all(_is_job_file(word) for word in words):
        _refuse(context, [*problems, *read_asks(given).problems])
        from dray.cli.asks.jobfile import load_jobs

        return Submission([spec for word in words for spec in load_jobs(Path(word), given)], key, None)
    if given.get("template"):
        return Submission([_by_template(context, words, given, problems)], key, None)
    if given.get("params"):
        _refuse(context, problems)
        raise click.UsageError("-p goes with a template: name one with --template, or in a job file", context)
    if not words:
        raise click.UsageError("give a command after `--`, a job file (.yaml) or a batch script", context)
    if not context.meta.get(_DASHES) and _is_batch_script(words[0]):
        _refuse(context, [*problems, *read_asks(given).problems])
        asks = _read_script(words, given)
    else:
        asks = read_asks({**given, "command": list(words)})
        _refuse(context, [*problems, *asks.problems])
        settle_surroundings(asks.spec)
    _refuse(context, find_broken_text(asks.spec))
    return Submission([asks.spec], key, asks)


def _by_template(
    context: click.Context, words: Sequence[str], given: Mapping[str, Any], problems: list[Problem]
) -> dict[str, Any]:
    """A job by a template. What may stand beside it the hub knows, which has the template."""
    if words:
        raise click.UsageError("a template has a command of its own: give none, or drop --template", context)
    asks = read_asks(given)
    _refuse(context, [*problems, *asks.problems, *find_broken_text(asks.spec)])
    settle_surroundings(asks.spec)
    return asks.spec


def _read_script(words: Sequence[str], flags: Mapping[str, Any]) -> Asks:
    """The job of a batch script, flags winning over it; what of it has no meaning here is told."""
    from dray.cli.asks.slurm_scripts import place_problems, read_script, slurm_variables

    path = Path(words[0])
    script = read_script(path, list(words[1:]))
    asks = read_asks(overlay(script.given, flags))
    if asks.problems:
        raise place_problems(path, asks.problems, script.lines)
    settle_surroundings(asks.spec)
    asks.spec["env"] = {**slurm_variables(asks.spec, script.processes), **asks.spec["env"]}
    for note in script.notes:
        say(f"{path}: {note}")
    return asks


def repeat(
    context: click.Context, hub: Hub, job: str, words: Sequence[str], flags: Mapping[str, Any]
) -> Submission:
    """Take the spec of a job of before, flags winning over it. What it waited for is over: that is left out."""
    if words:
        raise click.UsageError("--from repeats the job's own command: give none, or drop --from", context)
    given, problems = read_flags(flags)
    document = hub.get(job_path(job))
    spec = again_spec(document.get("spec") or {})
    if document.get("calls"):
        raise click.UsageError(f"job {job} runs a function: submit it again from Python", context)
    nodes = spec.get("node_count", 1) if "nodes" not in given else 1
    asks = read_changes(given, nodes)
    _refuse(context, [*problems, *asks.problems])
    if "job_tier" in asks.spec and "priority" not in asks.spec:
        spec.pop("priority", None)
    for field, value in asks.spec.items():
        spec[field] = {**spec.get(field, {}), **value} if field in ("env", "labels") else value
    return Submission([spec], flags.get("key") or uuid.uuid4().hex, asks)


def read_update(
    context: click.Context,
    hub: Hub,
    path: str,
    words: Sequence[str],
    file: str | None,
    flags: Mapping[str, Any],
) -> dict[str, Any]:
    """What a service is to be made of: all of a job file, or what flags and a command change of it."""
    given, problems = read_flags(flags)
    if file is None and len(words) == 1 and _is_job_file(words[0]):
        file, words = words[0], ()
    if file is not None:
        if words:
            raise click.UsageError(
                "a job file has a command of its own: give none, or drop the file", context
            )
        _refuse(context, [*problems, *read_asks(given).problems])
        from dray.cli.asks.jobfile import load_jobs

        specs = load_jobs(Path(file), given)
        if len(specs) != 1:
            raise click.UsageError(f"{file} holds {len(specs)} jobs: a service is updated by one", context)
        return {"spec": bring_folders(hub, specs)[0]}
    asks = read_changes({**given, "command": list(words)} if words else given, 1)
    _refuse(context, [*problems, *asks.problems, *find_broken_text(asks.spec)])
    if not asks.spec:
        raise click.UsageError(
            "nothing is to be changed: give flags, a command after `--`, or a job file", context
        )
    if "env" in asks.spec:
        job = hub.get(job_path(hub.get(path)["id"]))
        asks.spec["env"] = {**(job.get("spec") or {}).get("env", {}), **asks.spec["env"]}
    return {"changes": bring_folders(hub, [asks.spec])[0]}


def send(
    hub: Hub, submission: Submission, patience: Outage | None = None, exists: str = "refuse"
) -> list[dict[str, Any]]:
    """Submit all or none; give the jobs in order. Without patience a hub that cannot be reached at all is final.

    An id that is taken is a mistake in what was typed, unless `exists` says otherwise.
    """
    headers = {"Idempotency-Key": submission.key}
    specs = bring_folders(hub, submission.specs, submission.snapshot_bytes)

    def ask() -> Any:
        path, body = ("/jobs", specs[0]) if len(specs) == 1 else ("/jobs:batch", specs)
        return hub.call("POST", path, {"exists": exists}, body, headers)

    try:
        if patience is not None:
            answer = patience.ride_out(ask)
        else:
            try:
                answer = ask()
            except HubAway as error:
                if not error.sent:
                    raise
                answer = Outage(RETRY_S, "it may have been submitted: look with `dray ps`").ride_out(ask)
    except HubRefusal as refusal:
        if refusal.code == "conflict":
            refusal.exit_code = 2
        if submission.asks is not None:
            refusal.problems = tuple(name_flags(list(refusal.problems), submission.asks))
        raise
    return answer if isinstance(answer, list) else [answer]


def send_as_new(hub: Hub, submission: Submission, replace: bool) -> list[dict[str, Any]]:
    """Submit under ids that are free: ID.2, ID.3 … where ID is taken. What the jobs say of each other goes along.

    With `replace` those that live under the ids before are cancelled, once the new ones are recorded: whatever goes
    wrong, one of the two is there.
    """
    while True:
        names = {spec["id"]: _free_id(hub, spec["id"]) for spec in submission.specs if spec.get("id")}
        renamed = [
            _rename(spec, {name: free for name, (free, _) in names.items()}) for spec in submission.specs
        ]
        try:
            jobs = send(hub, submission._replace(specs=renamed))
        except HubRefusal as refusal:
            # Somebody was quicker with the same id.
            if refusal.code == "conflict" and " exists since " in refusal.message:
                continue
            raise
        for _, living in names.values() if replace else ():
            for job_id in living:
                hub.call("POST", job_path(job_id, "/cancel"), body={})
        return jobs


def _free_id(hub: Hub, job_id: str) -> tuple[str, list[str]]:
    """The first of ID, ID.2, ID.3 … that nobody has, and those before it that live."""
    living: list[str] = []
    for number in itertools.count(1):
        name = job_id if number == 1 else f"{job_id}.{number}"
        try:
            if not has_ended(hub.get(job_path(name))):
                living.append(name)
        except HubRefusal as refusal:
            if refusal.status == 404:
                return name, living
            raise
    raise AssertionError(job_id)


def _rename(spec: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed = dict(spec)
    if spec.get("id"):
        renamed["id"] = names[spec["id"]]
    if spec.get("after"):
        # Here, since it loads what a plain submit does without.
        from dray.core.model.specs.dependency import read_need

        needs = [read_need(text) for text in spec["after"]]
        renamed["after"] = [str(need._replace(job_id=names.get(need.job_id, need.job_id))) for need in needs]
    return renamed


def _refuse(context: click.Context, problems: list[Problem]) -> None:
    if not problems:
        return
    lines = [f"{problem.where}: {problem.what}" for problem in name_flags(problems)]
    raise click.UsageError(
        "\n  ".join(["", *lines]).strip() if len(lines) == 1 else "\n  ".join(["", *lines]), context
    )


def find_broken_text(spec: Mapping[str, Any]) -> list[Problem]:
    """Name the fields that hold bytes which are no text: the shell passes them on, JSON cannot carry them."""
    broken: list[Problem] = []
    for field, value in spec.items():
        texts = [*value, *value.values()] if isinstance(value, dict) else value
        listed = texts if isinstance(texts, list) else [texts]
        broken += [
            Problem(field, f"{text!r} is not valid UTF-8: pass such bytes in a file")
            for text in listed
            if isinstance(text, str) and any("\ud800" <= sign <= "\udfff" for sign in text)
        ]
    return broken


def _is_job_file(word: str) -> bool:
    return word.lower().endswith((".yaml", ".yml"))


def _is_batch_script(word: str) -> bool:
    if not os.path.isfile(word):
        return False
    # Here, since a plain submit does without.
    from dray.cli.asks.slurm_scripts import is_batch_script

    return is_batch_script(word)
