"""Configuration: file < environment < flag, every problem at once, and the origin of each value."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from dray import config as module
from dray.config import (
    TABLES,
    AgentConfig,
    ClientConfig,
    HubConfig,
    default_worker_name,
    find_home,
    load_agent,
    load_client,
    load_hub,
    tell_origin,
)
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.ids import is_id
from dray.errors import InvalidConfig
from dray.hub.app import _rules
from dray.settings_file import list_ignored


def problems_of(home: Path, flags=None, env=None, load=load_hub) -> list[tuple[str, str]]:
    with pytest.raises(InvalidConfig) as caught:
        load(home, flags or {}, env or {})
    return [(problem.where, problem.what) for problem in caught.value.problems]


def test_defaults_are_those_of_the_protocol(tmp_path):
    config = load_hub(tmp_path, {}, {})
    assert (config.host, config.port) == ("127.0.0.1", 7373)
    assert (config.heartbeat_s, config.suspect_s, config.unknown_s, config.lost_s) == (10, 25, 40, 120)
    assert (config.lost_service_s, config.start_grace_s, config.accept_s) == (60, 120, 30)
    assert config.resend_s == (2, 4, 8)
    assert (config.queue_messages, config.queue_bytes) == (256, 1 << 20)
    assert config.keys_s == 7 * 86400
    agent = load_agent(tmp_path, {}, {})
    assert (agent.reconnect_min_s, agent.reconnect_max_s) == (0.5, 30)
    assert agent.result_resend_s[0] == 1
    assert agent.result_resend_s[-1] == 30
    assert load_client(tmp_path, {}, {}).away_s == 600
    assert tell_origin(config, "port") == "default"


def test_file_below_environment_below_flag(tmp_path):
    (tmp_path / "config.toml").write_text(
        "[hub]\nport = 1\nhost = '::1'\nlost_s = '5m'\nbody_bytes = '4m'\nhosts = ['a', 'b']\nresend_s = [1, 2]\n"
    )
    env = {
        "DRAY_HUB_PORT": "2",
        "DRAY_HUB_HOST": "localhost",
        "DRAY_HUB_LOG_JSON": "off",
        "DRAY_HUB_HOSTS": "x, y",
    }
    config = load_hub(tmp_path, {"port": 3, "tls_cert": None}, env)
    assert (config.port, config.host, config.lost_s, config.body_bytes) == (3, "localhost", 300, 4 << 20)
    assert config.log_json is False
    assert config.hosts == ("x", "y")
    assert config.resend_s == (1, 2)
    assert tell_origin(config, "port") == "--port"
    assert tell_origin(config, "host") == "DRAY_HUB_HOST"
    assert tell_origin(config, "lost_s") == f"{tmp_path / 'config.toml'} [hub] lost_s"


def test_every_problem_is_told_at_once(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("[hub]\nprot = 1\nlost_s = 'soon'\n[hubb]\nx = 1\n")
    env = {"DRAY_HUB_PROT": "7", "DRAY_HUB_JSON_DEPTH": "deep", "DRAY_HUB_SERVICE_HOST": "10.0.0.1"}
    found = problems_of(tmp_path, {"port": 70000, "brake_share": 2}, env)
    assert found == [
        (f"{path}:4:1", "[hubb] is not a table; did you mean 'hub'?"),
        ("DRAY_HUB_PROT", "is not a variable of dray; did you mean DRAY_HUB_PORT?"),
        (f"{path}:2:1 [hub] prot", "'prot' is not a setting; did you mean 'port'?"),
        (f"{path}:3:1 [hub] lost_s", "'soon' is not a span of time: write seconds, or 90s, 15m, 2h, 1d"),
        ("DRAY_HUB_JSON_DEPTH", "must be a whole number, got 'deep'"),
        ("--port", "must be 65535 or less, got 70000"),
        ("--brake-share", "must be 1 or less, got 2"),
    ]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"heartbeat_s": 0}, "must be more than 0"),
        ({"heartbeat_s": -1}, "is not a span of time"),
        ({"heartbeat_s": "nan"}, "is not a span of time"),
        ({"heartbeat_s": True}, "must be a number"),
        ({"port": 1.5}, "must be a whole number"),
        ({"log_json": "perhaps"}, "must be true or false"),
        ({"resend_s": []}, "must be a list of seconds"),
        ({"resend_s": "1,0"}, "above 0 only"),
        ({"hosts": [1]}, "must be a list of texts"),
        ({"host": 7}, "must be text"),
        ({"body_bytes": "big"}, "is not a size"),
    ],
)
def test_impossible_values(tmp_path, flags, part):
    ((where, what),) = problems_of(tmp_path, flags)
    assert where == f"--{next(iter(flags)).replace('_', '-')}"
    assert part in what


def test_bad_files(tmp_path):
    (tmp_path / "config.toml").write_text("[hub\n")
    assert "is not valid TOML" in problems_of(tmp_path)[0][1]
    (tmp_path / "config.toml").write_text("hub = 3\n")
    assert "must be a table" in problems_of(tmp_path)[0][1]
    (tmp_path / "config.toml").write_text("[worker]\nslots = 'x'\n")
    assert load_hub(tmp_path, {}, {}).port == 7373
    assert "must be a whole number" in problems_of(tmp_path, load=load_agent)[0][1]


def test_settings_may_be_yaml_and_say_where_they_are_wrong(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("hub:\n  port: 7400\n  lost_s: 5m\n  hosts: [a, b]\nworker:\n  labels: {room: lab-2}\n")
    config = load_hub(tmp_path, {}, {})
    assert (config.port, config.lost_s, config.hosts) == (7400, 300, ("a", "b"))
    assert load_agent(tmp_path, {}, {}).labels == {"room": "lab-2"}
    assert tell_origin(config, "port") == f"{path} [hub] port"
    path.write_text("hub:\n  prot: 7400\n  lost_s: soon\nhubb: {}\n")
    found = problems_of(tmp_path)
    assert [where for where, _ in found] == [
        f"{path}:4:1",
        f"{path}:2:3 [hub] prot",
        f"{path}:3:3 [hub] lost_s",
    ]
    path.write_text("hub: {port: 1\n")
    ((where, what),) = problems_of(tmp_path)
    assert where == f"{path}:2:1"
    assert "not valid YAML" in what
    path.write_text("- 3\n")
    assert "must hold tables" in problems_of(tmp_path)[0][1]


def test_toml_that_cannot_be_read_says_where(tmp_path):
    (tmp_path / "config.toml").write_text("[hub]\nport = 7400\nlost_s = 5m\n")
    ((where, what),) = problems_of(tmp_path)
    assert where == f"{tmp_path / 'config.toml'}:3:11"
    assert "is not valid TOML" in what


def test_files_that_are_not_read_are_named(tmp_path):
    assert list_ignored(tmp_path) == []
    for name in ("config.yml", "config.toml", "policy.yml"):
        (tmp_path / name).write_text("")
    assert list_ignored(tmp_path) == [
        f"{tmp_path / 'config.yml'} is ignored: the settings are read from config.toml",
        f"{tmp_path / 'policy.yml'} is ignored: it would be read as policy.yaml",
    ]


def test_certificate_and_key_go_together(tmp_path):
    with pytest.raises(InvalidConfig, match="go together"):
        load_hub(tmp_path, {"tls_cert": "c.pem"}, {})


def test_worker_settings(tmp_path):
    env = {
        "DRAY_HUB": "https://h",
        "DRAY_TOKEN": "t",
        "DRAY_WORKER_LABELS": "zone=a, disk=ssd",
        "DRAY_WORKER_SLOTS": "4",
        "DRAY_WORKER_RESOURCES": "license=2, disk=3",
    }
    config = load_agent(tmp_path, {"name": "w1", "cafile": "~/ca.pem"}, env)
    assert (config.hub, config.token, config.name, config.slots) == ("https://h", "t", "w1", 4)
    assert config.labels == {"zone": "a", "disk": "ssd"}
    assert config.resources == {"license": 2, "disk": 3}
    assert config.cafile == Path("~/ca.pem").expanduser()
    assert "t" not in repr(config).split("token")[-1][:3]
    assert problems_of(tmp_path, {"name": "a b"}, load=load_agent)[0][0] == "--name"
    assert "must be one of cpu, nvidia" in problems_of(tmp_path, {"backend": "cuda"}, load=load_agent)[0][1]
    assert "k=v" in problems_of(tmp_path, {"labels": "zone"}, load=load_agent)[0][1]
    assert "k=v" in problems_of(tmp_path, {"resources": "license"}, load=load_agent)[0][1]
    assert "whole number" in problems_of(tmp_path, {"resources": {"license": -1}}, load=load_agent)[0][1]


def test_the_table_of_a_worker_wins_over_the_shared_variable(tmp_path):
    env = {"DRAY_HUB": "https://everyone", "DRAY_WORKER_HUB": "https://mine"}
    assert load_agent(tmp_path, {}, env).hub == "https://mine"
    assert load_client(tmp_path, {}, env).hub == "https://everyone"


@pytest.mark.parametrize("hostname", ["node-7", "", "-x", "ünïcode.local", "a b/c", "x" * 300, "..."])
def test_a_host_name_becomes_an_id(hostname):
    assert is_id(default_worker_name(hostname))


def test_home(tmp_path, monkeypatch):
    assert find_home(tmp_path, {"DRAY_HOME": "/x"}) == tmp_path
    assert find_home(None, {"DRAY_HOME": "/x"}) == Path("/x")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_home(None, {}) == tmp_path / ".dray"
    monkeypatch.chdir(tmp_path)
    assert find_home("here", {}) == tmp_path / "here"


def test_every_field_has_a_reader():
    for kind in TABLES.values():
        for item in fields(kind):
            if item.name not in ("home", "origins"):
                assert item.type in module._READERS, f"{kind.__name__}.{item.name}"


def test_a_configuration_does_not_change(tmp_path):
    for config in (HubConfig(home=tmp_path), AgentConfig(home=tmp_path), ClientConfig(home=tmp_path)):
        with pytest.raises(FrozenInstanceError):
            config.home = Path("/")  # type: ignore[misc]  # the point of the test


def test_importing_it_is_cheap():
    heavy = ("msgspec", "numpy", "click", "asyncio", "ssl")
    code = f"import sys, dray.config; print([name for name in sys.modules if name in {heavy}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_timers_have_the_defaults_of_the_core(tmp_path):
    assert _rules(HubConfig(home=tmp_path)) == Rules()
