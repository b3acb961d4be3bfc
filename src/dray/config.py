"""Every setting of hub, agent and client: file < environment < flag.

Owns names, defaults and where each value came from (timers of the worker protocol have those of
`core.lifecycle.state.timings`); opens no socket and knows nothing about what the numbers do.
The file is `HOME/config.toml`, or `config.yaml`, with the tables [hub], [worker] and [client]. The surprising rule:
an unknown key in the file is an error, an unknown variable only when it is a near miss, because other software makes
up names of its own that begin with DRAY_HUB_ (service links of container platforms do).
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dray.core.lifecycle.state.timings import Rules
from dray.core.model.ids import FAKE_PREFIX, ID_RULE, is_fake, is_id
from dray.core.model.specs.ports import read_span
from dray.core.model.units import parse_bytes, parse_seconds
from dray.errors import DrayError, InvalidConfig, InvalidInput, Problem
from dray.settings_file import read_settings

MIB, GIB = 1 << 20, 1 << 30
DAY_S = 86400.0
_TIMERS = Rules()
DEFAULT_PORT = 7373
# Of a worker that is started together with its hub.
PAIR_SERVICE_SLOTS = 8
MAX_NAMED = 64
MAX_USERS = 4096
# Where a hub is and how it is asked: a hub and an agent that are started together find each other by their home.
_TARGETS = (
    "DRAY_HUB",
    "DRAY_TOKEN",
    "DRAY_FINGERPRINT",
    "DRAY_CAFILE",
    "DRAY_HUB_SOCKET",
    "DRAY_HUB_USER",
    "DRAY_WORKER_HUB",
    "DRAY_WORKER_TOKEN",
)


# A hub's alone: tasks and their agent have no business with its database, nor with its Redis.
_STORES = ("DRAY_STORE", "DRAY_HUB_STORE", "DRAY_REDIS", "DRAY_HUB_REDIS")


def environment_of_pair(role: str = "") -> dict[str, str]:
    """This program's environment for a hub or its agent, wherever the caller's shell would point them.

    Only a hub by its `role` finds the database and the Redis of the site in it: one for a while, in a home of its own,
    has none.
    """
    kept_out = _TARGETS if role == "hub" else (*_TARGETS, *_STORES)
    return {name: value for name, value in os.environ.items() if name not in kept_out}


def default_worker_name(hostname: str | None = None) -> str:
    """This machine's host name, bent into an id."""
    text = socket.gethostname() if hostname is None else hostname
    bent = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:128]
    return bent or "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """One hub. The three blocks below are limits, retention and the timers of the worker protocol."""

    home: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    grpc_port: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    store: str = field(default="", repr=False)
    store_lease_s: float = 3.0
    files: Path | None = None
    redis: str = field(default="", repr=False)
    redis_prefix: str = "dray"
    redis_documents_s: float = DAY_S
    hosts: tuple[str, ...] = ()
    proxy_domain: str = ""
    log_json: bool = True
    log_file: Path | None = None
    log_file_bytes: int = 10 * MIB
    log_files: int = 5

    body_bytes: int = 8 * MIB
    frame_text_bytes: int = 1 * MIB
    frame_msgpack_bytes: int = 8 * MIB
    json_depth: int = 64
    batch_specs: int = 10_000
    log_bytes_per_attempt: int = 64 * MIB
    queue_messages: int = 256
    queue_bytes: int = 1 * MIB
    max_workers: int = 20_000
    max_epoch_jump: int = 4096

    finished_s: float = 30 * DAY_S
    finished_max: int = 1_000_000
    log_s: float = 7 * DAY_S
    output_bytes: int = 10 * GIB
    keys_s: float = 7 * DAY_S
    audit_s: float = 90 * DAY_S
    samples_s: float = 30 * DAY_S
    reserve_bytes: int = 32 * MIB
    min_free_bytes: int = 64 * MIB
    max_blob_bytes: int = 4 * GIB
    max_user_blob_bytes: int = 100 * GIB
    max_snapshot_bytes: int = 8 * GIB
    share_own_account: bool = False
    blob_idle_s: float = 3600.0

    heartbeat_s: float = 10.0
    suspect_s: float = _TIMERS.suspect_ms / 1000
    unknown_s: float = _TIMERS.unknown_ms / 1000
    lost_s: float = _TIMERS.lost_ms / 1000
    lost_service_s: float = _TIMERS.lost_service_ms / 1000
    start_grace_s: float = _TIMERS.start_grace_ms / 1000
    accept_s: float = _TIMERS.accept_ms / 1000
    open_idle_s: float = _TIMERS.open_idle_ms / 1000
    resend_s: tuple[float, ...] = tuple(delay / 1000 for delay in _TIMERS.resend_ms)
    brake_share: float = _TIMERS.brake_share
    brake_window_s: float = _TIMERS.brake_window_ms / 1000
    brake_min: int = _TIMERS.brake_min
    quarantine_failures: int = _TIMERS.quarantine_failures
    limit_margin_s: float = _TIMERS.limit_margin_ms / 1000
    flap_refuse_s: float = _TIMERS.flap_refuse_ms / 1000

    estimate_every_s: float = 10.0
    stale_s: float = DAY_S
    alarm_every_s: float = 5.0
    launch_look_s: float = 5.0
    notify_retry_s: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One agent. An empty `hub` means the hub of this home, looked up in hub.json at every connection."""

    home: Path
    hub: str = ""
    token: str = field(default="", repr=False)
    fingerprint: str = ""
    cafile: Path | None = None
    hub_user: str = ""
    name: str = field(default_factory=default_worker_name)
    slots: int = 0
    service_slots: int = 0
    cpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    backend: str = ""
    allow_software_vulkan: bool = False
    fake: str = ""
    count: int = 1
    ends_at: str = ""
    task_user: str = ""
    task_users: dict[str, str] = field(default_factory=dict)
    address: str = ""
    ports: str = "20000-29999"
    runners: int = -1
    blob_cache_bytes: int = 10 * GIB
    snapshot_cache_bytes: int = 20 * GIB
    reconnect_min_s: float = 0.5
    reconnect_max_s: float = 30.0
    result_resend_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    start_within_s: float = 10.0
    sample_s: float = 10.0
    log_window_bytes: int = 1 * MIB
    output_bytes: int = 64 * MIB
    terminal_s: float = 7 * DAY_S
    terminal_max: int = 10_000
    log_file: Path | None = None
    log_file_bytes: int = 10 * MIB
    log_files: int = 5

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """Where this agent keeps what is its own: several fake machines share the home of one hub."""
        return self.home / "fake" / self.name if self.fake else self.home

    @property
    def accounts(self) -> dict[str, str]:
        """By dray user, in whose account tasks run; `*` is everybody else. Empty: all of them in the agent's own."""
        return ({"*": self.task_user} if self.task_user else {}) | self.task_users


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One user of a hub: the command line or the Python client."""

    home: Path
    hub: str = ""
    token: str = field(default="", repr=False)
    fingerprint: str = ""
    cafile: Path | None = None
    hub_user: str = ""
    hub_socket: Path | None = None
    timeout_s: float = 30.0
    away_s: float = 600.0
    safe_results: str = ""

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


TABLES: dict[str, type[HubConfig | AgentConfig | ClientConfig]] = {
    "hub": HubConfig,
    "worker": AgentConfig,
    "client": ClientConfig,
}
# Whoever talks to a hub reads these, whichever table it belongs to.
_SHARED_VARIABLES = {
    "hub": "DRAY_HUB",
    "token": "DRAY_TOKEN",
    "fingerprint": "DRAY_FINGERPRINT",
    "cafile": "DRAY_CAFILE",
    "hub_user": "DRAY_HUB_USER",
    "hub_socket": "DRAY_HUB_SOCKET",
    "store": "DRAY_STORE",
    "files": "DRAY_FILES",
    "redis": "DRAY_REDIS",
}
_CHOICES = {"backend": ("", "cpu", "nvidia", "metal", "vulkan"), "safe_results": ("", "json")}
_HOME_KEYS = ("home", "origins")


class Given(NamedTuple):
    """A value as it was given, where it came from, and the place to look at if it is wrong."""

    raw: Any
    origin: str
    place: str


T = TypeVar("T", HubConfig, AgentConfig, ClientConfig)


def find_home(flag: str | Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """The home is found before the file, because the file lies in it: flag, then DRAY_HOME, then ~/.dray."""
    return Path(flag or env.get("DRAY_HOME") or "~/.dray").expanduser().absolute()


def load_hub(home: Path, flags: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> HubConfig:
    """Settle a hub's configuration, or raise `InvalidConfig` with every problem."""
    config = _load(HubConfig, "hub", home, flags, env)
    if (config.tls_cert is None) != (config.tls_key is None):
        raise InvalidConfig("tls_cert and tls_key go together: give both or neither")
    if config.store and config.store.partition("://")[0] not in ("postgres", "postgresql"):
        # Not shown: it may hold a password all the same.
        raise InvalidConfig(
            f"{tell_origin(config, 'store')}: the store is a database, postgres://USER@HOST:PORT/NAME; left out, it is "
            "a file in the home"
        )
    if config.redis and config.redis.partition("://")[0] not in ("redis", "rediss"):
        # As above.
        raise InvalidConfig(
            f"{tell_origin(config, 'redis')}: Redis is redis://HOST:PORT/DB, or rediss://… with TLS; left out, there "
            "is none"
        )
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,64}", config.redis_prefix):
        raise InvalidConfig(
            f"{tell_origin(config, 'redis_prefix')}: keys begin with 1 to 64 letters, digits, '.', '_', '-' or ':', "
            f"got {config.redis_prefix!r}"
        )
    return config


def load_agent(home: Path, flags: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> AgentConfig:
    """Settle an agent's configuration, or raise `InvalidConfig` with every problem."""
    config = _load(AgentConfig, "worker", home, flags, env)
    if is_fake(config.name) and not config.fake:
        what = f"{config.name}: names that begin with {FAKE_PREFIX} are those of fake machines: choose another --name"
        raise InvalidConfig(what)
    if config.count > 1 and not config.fake:
        raise InvalidConfig("--count goes with --fake: this machine is one worker")
    return config


def load_client(home: Path, flags: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> ClientConfig:
    """Settle a client's configuration, or raise `InvalidConfig` with every problem."""
    return _load(ClientConfig, "client", home, flags, env)


def tell_origin(config: HubConfig | AgentConfig | ClientConfig, name: str) -> str:
    """Say where a value came from: `default`, a file, a variable or a flag."""
    return config.origins.get(name, "default")


def _load(kind: type[T], table: str, home: Path, flags: Mapping[str, Any], env: Mapping[str, str]) -> T:
    known = {item.name: item for item in fields(kind) if item.name not in _HOME_KEYS}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    layers = (
        _read_file(home, table, problems),
        _read_environment(known, table, env, problems),
        {name: Given(value, *[_flag_name(name)] * 2) for name, value in flags.items() if value is not None},
    )
    for layer in layers:
        for name, (raw, origin, place) in layer.items():
            if name not in known:
                problems.append(Problem(place, f"{name!r} is not a setting{_suggest(name, list(known))}"))
                continue
            try:
                values[name] = _convert(known[name], raw)
            except DrayError as error:
                problems.append(Problem(place, error.message))
            else:
                origins[name] = origin
    if problems:
        listed = "; ".join(f"{problem.where}: {problem.what}" for problem in problems)
        raise InvalidConfig(f"the configuration cannot be used: {listed}", problems)
    return kind(home=home, origins=origins, **values)


def _read_file(home: Path, table: str, problems: list[Problem]) -> dict[str, Given]:
    settings = read_settings(home)
    problems += settings.problems
    for name, value in settings.tables.items():
        if name not in TABLES:
            problems.append(
                Problem(settings.where(name), f"[{name}] is not a table{_suggest(name, list(TABLES))}")
            )
        elif value is not None and not isinstance(value, dict):
            problems.append(Problem(settings.where(name), f"{name} must be a table: write [{name}]"))
    found = settings.tables.get(table)
    if not isinstance(found, dict):
        return {}
    return {
        key: Given(value, f"{settings.path} [{table}] {key}", f"{settings.where(table, key)} [{table}] {key}")
        for key, value in found.items()
    }


def _read_environment(
    known: Mapping[str, Field[Any]], table: str, env: Mapping[str, str], problems: list[Problem]
) -> dict[str, Given]:
    prefix = f"DRAY_{table.upper()}_"
    variables = {f"{prefix}{name.upper()}": name for name in known}
    shared = {variable: name for name, variable in _SHARED_VARIABLES.items() if name in known}
    found: dict[str, Given] = {}
    for variable, name in {**shared, **variables}.items():
        if env.get(variable):
            found[name] = Given(env[variable], variable, variable)
    for variable in env:
        if variable.startswith(prefix) and variable not in variables:
            near = _nearest(variable[len(prefix) :].lower(), list(known), cutoff=0.7)
            if near:
                meant = f"{prefix}{near.upper()}"
                problems.append(Problem(variable, f"is not a variable of dray; did you mean {meant}?"))
    return found


def _convert(item: Field[Any], raw: Any) -> Any:
    """Read one value by the type its field declares; text is welcome everywhere, since variables are text."""
    value = _READERS[str(item.type)](item.name, raw)
    choices = _CHOICES.get(item.name)
    if choices is not None and value not in choices:
        raise InvalidInput(f"must be one of {', '.join(filter(None, choices))}, got {value!r}")
    if item.name == "name" and not is_id(value):
        raise InvalidInput(f"must be {ID_RULE}, got {value!r}")
    if item.name == "ports":
        read_span(value)
    default = item.default
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < 0:
            raise InvalidInput(f"must be 0 or more, got {value:g}")
        if item.name in ("port", "grpc_port") and value > 65535:
            raise InvalidInput(f"must be 65535 or less, got {value}")
        if item.name.endswith("_share") and value > 1:
            raise InvalidInput(f"must be 1 or less, got {value:g}")
        if (
            value == 0
            and default not in (MISSING, 0)
            and item.name not in ("port", "estimate_every_s", "runners", "redis_documents_s")
            and isinstance(default, (int, float))
        ):
            raise InvalidInput("must be more than 0, got 0")
    return value


def _read_int(name: str, raw: Any) -> int:
    if name.endswith("_bytes") or name == "log_bytes_per_attempt":
        if isinstance(raw, (str, int)) and not isinstance(raw, bool):
            return parse_bytes(raw)
    elif isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    elif isinstance(raw, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", raw):
        return int(raw)
    raise InvalidInput(f"must be a whole number, got {raw!r}")


def _read_float(name: str, raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise InvalidInput(f"must be a number, got {raw!r}")
    value = parse_seconds(raw)
    if not math.isfinite(value):
        raise InvalidInput(f"must be a finite number, got {raw!r}")
    return value


def _read_bool(name: str, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise InvalidInput(f"must be true or false, got {raw!r}")


def _read_text(name: str, raw: Any) -> str:
    if not isinstance(raw, str):
        raise InvalidInput(f"must be text, got {raw!r}")
    return raw.strip()


def _read_path(name: str, raw: Any) -> Path | None:
    if isinstance(raw, Path):
        return raw
    text = _read_text(name, raw)
    return Path(text).expanduser().absolute() if text else None


def _read_texts(name: str, raw: Any) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise InvalidInput(f"must be a list of texts, got {raw!r}")
    return tuple(part.strip() for part in parts if part.strip())


def _read_spans(name: str, raw: Any) -> tuple[float, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, (list, tuple)) or not parts:
        raise InvalidInput(f"must be a list of seconds, got {raw!r}")
    spans = tuple(_read_float(name, part) for part in parts)
    if min(spans) <= 0:
        raise InvalidInput(f"must hold seconds above 0 only, got {raw!r}")
    return spans


def _read_labels(name: str, raw: Any) -> dict[str, str]:
    if isinstance(raw, str):
        pairs = [part.partition("=") for part in raw.split(",") if part.strip()]
        if not all(mark for _, mark, _ in pairs):
            raise InvalidInput(f"must be k=v,k=v, got {raw!r}")
        raw = {key.strip(): value.strip() for key, _, value in pairs}
    if not isinstance(raw, Mapping) or not all(isinstance(value, str) for value in raw.values()):
        raise InvalidInput(f"must map names to texts, got {raw!r}")
    # What a hub takes of one worker: better said here than by every registration.
    most = MAX_NAMED if name == "labels" else MAX_USERS
    if len(raw) > most or any(len(key) > 256 or len(value) > 1024 for key, value in raw.items()):
        raise InvalidInput(
            f"must hold at most {most} names of 256 characters with texts of 1024, got {len(raw)} names"
        )
    return dict(raw)


def _read_amounts(name: str, raw: Any) -> dict[str, int]:
    if isinstance(raw, str):
        raw = _read_labels(name, raw)
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"must map names to whole numbers, got {raw!r}")
    amounts = {key: _read_int(name, value) for key, value in raw.items()}
    if any(not 1 <= len(key) <= 256 or not 0 <= amount <= 2**53 for key, amount in amounts.items()):
        raise InvalidInput(f"must map names to whole numbers from 0 to 2^53, got {raw!r}")
    if len(amounts) > MAX_NAMED:
        raise InvalidInput(f"must hold at most {MAX_NAMED} names, got {len(amounts)}")
    return amounts


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "int": _read_int,
    "int | None": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "str": _read_text,
    "Path | None": _read_path,
    "tuple[str, ...]": _read_texts,
    "tuple[float, ...]": _read_spans,
    "dict[str, str]": _read_labels,
    "dict[str, int]": _read_amounts,
}


def _flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _suggest(word: str, known: list[str]) -> str:
    near = _nearest(word, known, cutoff=0.6)
    return f"; did you mean {near!r}?" if near else ""


def _nearest(word: str, known: list[str], cutoff: float) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), "")
