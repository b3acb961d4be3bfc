"""Reference pages that are tables of the code: settings, error codes, metrics, HTTP calls.

The names, defaults and statuses are read from the modules that own them. Descriptions of settings stand here; a setting
without one stops the generator, so that none is added in silence.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from dray import errors
from dray.cli.asks import fields as ask_fields
from dray.cli.assistants import commands as assistants
from dray.cli.machines import daemons
from dray.config import TABLES
from dray.core.model.units import format_bytes, format_seconds
from dray.errors import DrayError
from dray.functions import failures, values
from dray.hub.answers.metrics import Card, Gauges, Metrics
from dray.hub.http.calls import ROUTES
from dray.hub.http.replies import STATUS

SETTINGS: dict[str, dict[str, str]] = {
    "hub": {
        "host": "address to listen on; anything but loopback needs TLS",
        "port": "port to listen on; 0 takes any free one",
        "grpc_port": "port to answer gRPC on as well, at the same address; 0 takes any free one; left out: none",
        "tls_cert": "certificate with its chain; goes with `tls_key`",
        "tls_key": "key of the certificate",
        "store": "database that keeps the store, `postgres://USER:PASSWORD@HOST:PORT/NAME`; empty: a file in the home",
        "files": "folder that all hubs mount, for output and large values; left out: the database of the store, else "
        "the home",
        "store_lease_s": "how long a hub on a database may be silent before one that stands by takes over",
        "redis": "Redis to write a live view to, `redis://:PASSWORD@HOST:PORT/DB` or `rediss://…`; empty: none",
        "redis_prefix": "what the keys of the live view begin with",
        "redis_documents_s": "how long a job's document stays in Redis after its last change; 0: there are none",
        "hosts": "further names that clients may use for this hub (the `Host` header is checked)",
        "proxy_domain": "hosts of services, `NAME.DOMAIN`; on loopback `localhost` by itself",
        "log_json": "log as JSON lines instead of text",
        "log_file": "file for the log and all that is printed; empty: standard error",
        "log_file_bytes": "size at which that file is put aside",
        "log_files": "how many old ones of it are kept",
        "body_bytes": "largest HTTP body",
        "frame_text_bytes": "largest JSON frame of a worker",
        "frame_msgpack_bytes": "largest msgpack frame of a worker",
        "json_depth": "deepest nesting of an HTTP body; frames of workers and clients may nest 64 levels",
        "batch_specs": "most jobs in one `POST /jobs:batch`",
        "log_bytes_per_attempt": "output kept per attempt; past it only the count goes on",
        "queue_messages": "messages waiting for one worker before it is cut off",
        "max_workers": "how many workers are known; beyond, those that are gone are forgotten, the newest first",
        "max_epoch_jump": "how many starts a worker's memory may be ahead of a hub that was restored from a backup",
        "queue_bytes": "bytes waiting for one worker before it is cut off",
        "finished_s": "how long finished jobs are kept",
        "finished_max": "how many finished jobs are kept",
        "log_s": "how long the log of facts is kept behind the rows",
        "output_bytes": "output of finished jobs kept in all; the oldest goes first",
        "keys_s": "how long an idempotency key is remembered",
        "audit_s": "how long audit records are kept",
        "samples_s": "how long the minutes of `GET /history` are kept",
        "reserve_bytes": "disk held back, so that results can be recorded on a full disk",
        "min_free_bytes": "below this much free disk submits are refused",
        "share_own_account": "tasks of several users may run in the hub's own account, where they can read its home",
        "max_blob_bytes": "the largest argument or result of a call",
        "max_snapshot_bytes": "what the files of one snapshot may have together",
        "max_user_blob_bytes": "what the large values of one user may take together; those no job uses go first",
        "blob_idle_s": "how long an uploaded value is kept that no job refers to",
        "heartbeat_s": "how often a worker says that it lives",
        "suspect_s": "silence after which a worker gets no new work",
        "unknown_s": "silence after which its attempts are shown as `unknown`",
        "lost_s": "silence after which its attempts are lost and queued again",
        "lost_service_s": "the same for services",
        "start_grace_s": "after a start of the hub nothing is declared lost for this long",
        "accept_s": "how long a worker may take to accept an attempt before it is taken back",
        "open_idle_s": "how long a job that may still take calls stays open with none of them left to end",
        "resend_s": "when an unanswered assignment is sent again",
        "brake_share": "share of workers silent at once that stops all loss decisions",
        "brake_window_s": "the time within which they must have fallen silent",
        "brake_min": "and at least this many",
        "quarantine_failures": "so many different jobs that fail at once within a minute take a worker out; 0: none do",
        "limit_margin_s": "how long past its time limit a task may be before the hub itself cancels it",
        "flap_refuse_s": "how long two agents under one name are both refused",
        "stale_s": "after so long away a worker is left out of lists",
        "estimate_every_s": "how often start times are estimated at most, while somebody looks; 0: never",
        "alarm_every_s": "how often the policy's alarms are looked at",
        "launch_look_s": "how often launchers are looked at: whether to start workers, or to let idle ones go",
        "notify_retry_s": "pauses between tries to tell a receiver that does not answer, the last one again and again",
    },
    "worker": {
        "hub": "address of the hub; empty: the hub of this home",
        "token": "token with the scope `join` or `worker`; empty: that of this worker, or of the home",
        "fingerprint": "trust exactly this certificate of the hub",
        "cafile": "certificates to trust instead of the system's",
        "hub_user": "account that runs the hub of this machine, by name or number, where it is neither yours nor root",
        "name": "name of the worker",
        "slots": "batch tasks at once; 0: the usable cores",
        "service_slots": "services at once",
        "cpus": "cores that it offers; 0: those that it sees",
        "labels": 'labels of the worker, as `{k = "v"}` or `k=v,k=v`',
        "resources": "named resources it offers, as `{name = 4}` or `name=4,other=1`",
        "backend": "offer this backend only",
        "allow_software_vulkan": "offer Vulkan devices that are no cards",
        "ends_at": "when this machine is taken away: a span from its start, or a moment; by default the end of Slurm's "
        "allocation",
        "fake": "pretend to be another machine, such as `gpus=4,type=A100,vram=80G,cpus=64,memory=512G`",
        "count": "with `fake`: so many of them",
        "task_user": "run tasks as this user of the machine (needs root): `task_users` with `*`",
        "task_users": 'by dray user, whom tasks run as: `{ada = "ada", "*" = "jobs"}` (needs root)',
        "address": "where members of a gang meet this machine; empty: found out",
        "ports": "range from which tasks get the ports that they ask for",
        "runners": "warm processes for calls of functions, started ahead; -1: as many as slots",
        "snapshot_cache_bytes": "files of snapshots kept on the worker's disk",
        "blob_cache_bytes": "large values kept on the worker's disk",
        "reconnect_min_s": "first wait before dialling again",
        "reconnect_max_s": "longest wait before dialling again; the real one is drawn between 0 and the limit",
        "sample_s": "how often what attempts use of cores, memory and cards is looked at; 0: never",
        "start_within_s": "what the supervisor has not started so long after it was given never starts, and goes back",
        "result_resend_s": "when a result that was not acknowledged is sent again; the last span repeats",
        "log_window_bytes": "output sent ahead of the hub's acknowledgement",
        "output_bytes": "output kept on the worker per attempt and stream",
        "terminal_s": "how long ended attempts are remembered",
        "terminal_max": "how many ended attempts are remembered",
        "log_file": "file for the log and all that is printed; empty: standard error",
        "log_file_bytes": "size at which that file is put aside",
        "log_files": "how many old ones of it are kept",
    },
    "client": {
        "hub": "address of the hub; empty: the hub of this home",
        "token": "token; empty: the token file of this home",
        "fingerprint": "trust exactly this certificate of the hub",
        "cafile": "certificates to trust instead of the system's",
        "hub_user": "account that runs the hub of this machine, by name or number, where it is neither yours nor root",
        "hub_socket": "unix socket of that hub, where the home does not say it; tasks are told",
        "timeout_s": "how long one request may take",
        "away_s": "how long `run`, `wait` and `logs -f` wait for a hub that is away",
        "safe_results": "`json`: results of functions are opened only where they are plain data, which can run no code",
    },
}
CONFIG_INTRODUCTION = """# Settings

Every setting has a default, so none is needed. A value is taken from the file `config.toml`, or `config.yaml`, in the
home (`~/.dray` or `DRAY_HOME`), then from the environment, then from a flag; the later one wins. An unknown key in
the file is an error with a suggestion. Where a command fails over a setting, it says which file, with line and
column, which variable or which flag it came from. A file that lies there and is not read, such as `config.yaml`
beside `config.toml` or `policy.yml`, is named.

```toml
[hub]
port = 7400
lost_s = "5m"
output_bytes = "50g"

[worker]
slots = 4
labels = {room = "lab-2"}
```

The same in YAML:

```yaml
hub: {port: 7400, lost_s: 5m, output_bytes: 50g}
worker:
  slots: 4
  labels: {room: lab-2}
```

Times are seconds, or text such as `90s`, `15m`, `2h`, `7d`. Sizes are bytes, or text such as `512m`, `10g` (powers of
1024). Lists are comma-separated in a variable.
"""
ERRORS_INTRODUCTION = """# Error codes

An error says what was asked, what is there, and what to do. Its `code` is stable: programs may rely on it. Over HTTP it
looks like this, with every problem of the input at once:

```json
{"error": {"code": "invalid_spec",
           "message": "gpu_count: must be 0 or more, got -1",
           "problems": [{"where": "gpu_count", "what": "must be 0 or more, got -1"}]}}
```

The command line prints the message with the code in brackets, and each problem on a line of its own. Codes without an
HTTP status never leave a hub: the client and the command line raise them. Classes are those of `dray.errors`, where
there is one of that name.
"""
# What only clients meet.
CLIENT_MODULES = (values, failures, ask_fields, daemons, assistants)
METRICS_INTRODUCTION = """# Metrics

`GET /metrics` answers in the text form of Prometheus. It needs a token with the scope `read`. A histogram `x` has the
series `x_bucket`, `x_sum` and `x_count`. Counters begin at 0 with each start of the hub; `x_created` says when.

Workers are `ready`, `not_ready` (they say that they can start nothing, or are given nothing for a while after they
refused work), `suspect` or `silent` (not heard of for 25 and 40 s), `draining`, `quarantined` or `offline`. Phases of
attempts are [those that end](states.md); one that was given up as lost and comes back is counted again when it ends.
Calls are counted by the states `succeeded`, `failed` and `killed`. A turn that changes nothing commits nothing: it is
in `dray_turn_seconds` alone.
"""
API_INTRODUCTION = """# HTTP API

JSON in, JSON out, with `Authorization: Bearer <token>` on every call but the health checks. `openapi.json` beside this
page, and `GET /openapi.json` of a running hub, describe every field.

```sh
token=$(cat ~/.dray/token)
curl -s -H "Authorization: Bearer $token" http://127.0.0.1:7373/api/v1/jobs
```

- Lists are newest first. `next_cursor` of a page is the `cursor` of the next.
- Send `Idempotency-Key` with a submit and it is safe to send it again: the same key and the same job answer 200 with
  the job that is there, the same key and another job answer 409.
- `GET /api/v1/jobs/{id}?wait_s=30` answers when the job ends, or after that time.
- `GET /api/v1/events` is a stream of server-sent events; `Last-Event-ID` resumes it.
- Answers carry `Dray-Turn`, a word that only the hub can read. Whoever sends the last one back with what it asks
  next helps the hub to notice a store that has lost what it said; nobody has to.
- Answers carry `Dray-Seq`, the number of the last turn that they know of. Of several hubs any may be asked: whoever
  sends that number back as `Dray-Min-Seq` is answered by one that knows of that turn too, and so reads what it wrote.
- What belongs to somebody else answers 404, as if it were not there. Errors are [on their own page](errors.md).
"""


def write_config() -> str:
    """docs/reference/config.md."""
    parts = [CONFIG_INTRODUCTION]
    for table, kind in TABLES.items():
        prefix = f"DRAY_{table.upper()}_"
        parts.append(f"## [{table}]\n\nVariables: `{prefix}<KEY>`, such as `{_example(prefix, table)}`.\n")
        rows = [
            (f"`{item.name}`", _default(item), SETTINGS[table][item.name])
            for item in fields(kind)
            if item.name not in ("home", "origins")
        ]
        parts.append(_table(("key", "default", "meaning"), rows))
    parts.append(
        "`DRAY_HUB`, `DRAY_TOKEN`, `DRAY_FINGERPRINT`, `DRAY_CAFILE` and `DRAY_HUB_USER` set `hub`, `token`,"
    )
    parts.append(
        "`fingerprint`, `cafile` and `hub_user` of both `[worker]` and `[client]`, `DRAY_HUB_SOCKET` sets"
    )
    parts.append(
        "`hub_socket` of `[client]`, `DRAY_STORE` and `DRAY_REDIS` set `store` and `redis` of `[hub]`.\n"
    )
    return "\n".join(parts)


def _example(prefix: str, table: str) -> str:
    return prefix + next(iter(SETTINGS[table])).upper()


def _default(item: Field[Any]) -> str:
    if item.name == "name":
        return "the host's name"
    value = item.default
    if value is MISSING and item.default_factory is not MISSING:
        value = item.default_factory()
    if value in (None, "", (), {}):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if "bytes" in item.name and isinstance(value, int):
        return format_bytes(value)
    if item.name.endswith("_s"):
        return ", ".join(format_seconds(part) for part in (value if isinstance(value, tuple) else (value,)))
    return (
        f"`{value}`"
        if isinstance(value, (str, Path))
        else f"{value:,}"
        if item.name != "port"
        else str(value)
    )


def write_errors() -> str:
    """docs/reference/errors.md."""
    rows = [(f"`{kind.code}`", _status(kind), f"`{kind.__name__}`", _first_line(kind)) for kind in _kinds()]
    return f"{ERRORS_INTRODUCTION}\n{_table(('code', 'HTTP', 'class', 'meaning'), rows)}"


def _kinds() -> Iterator[type[DrayError]]:
    """What a hub answers, in the order of `dray.errors`, which goes from what users do to what happens to them."""
    yield from _classes(errors)
    yield from (kind for kind in STATUS if kind.__module__ != errors.__name__)
    for module in CLIENT_MODULES:
        yield from _classes(module)


def _classes(module: ModuleType) -> Iterator[type[DrayError]]:
    for item in vars(module).values():
        own = inspect.isclass(item) and item.__module__ == module.__name__
        if own and issubclass(item, DrayError) and "code" in vars(item) and item is not DrayError:
            yield item


def _status(kind: type[DrayError]) -> str:
    if kind.__module__ == errors.__name__ or kind in STATUS:
        return str(next((STATUS[base] for base in kind.__mro__ if base in STATUS), 500))
    return "–"


def _first_line(kind: type[DrayError]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def write_metrics() -> str:
    """docs/reference/metrics.md."""
    now = Gauges({"default": 0}, {"ready": 0}, attempts={"succeeded": 0})
    cards = [Card("w1", 0, "A100", 0.0)]
    now = now._replace(queue_wait_s={"default": 0.0}, alarms={"disk": 0}, cards=cards)
    metrics = Metrics(lambda: now)
    metrics.count_calls("succeeded", 1)
    metrics.count_request("submit_job", 201)
    rows = []
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        shown = ", ".join(f"`{label}`" for label in labels) or "–"
        rows.append((f"`{name}`", family.type, shown, family.documentation.rstrip(".")))
    return f"{METRICS_INTRODUCTION}\n{_table(('name', 'type', 'labels', 'meaning'), rows)}"


def write_api() -> str:
    """docs/reference/api.md."""
    rows = [
        (
            f"`{route.method} {route.path}`",
            route.about,
            ", ".join(f"`{scope}`" for scope in route.scopes) or "–",
        )
        for route in ROUTES
    ]
    return f"{API_INTRODUCTION}\n{_table(('call', 'what it does', 'scope: one of'), rows)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(re.sub(r"\|", r"\\|", cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
