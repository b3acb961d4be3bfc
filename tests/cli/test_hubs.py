"""`dray hub ls`, `status` and `resign`, and that `dray hub` alone still runs one."""

from __future__ import annotations

import json

import pytest

from dray.cli.main import main
from dray.testing.hub_process import running_hub

LEADER = {
    "id": "aa11",
    "url": "https://one:7373",
    "role": "leader",
    "epoch": 4,
    "seen_s": 0.2,
    "lag": 0,
    "version": "1",
    "workers": 7,
}
STANDBY = {
    "id": "bb22",
    "url": "https://two:7373",
    "role": "standby",
    "epoch": 4,
    "seen_s": 0.9,
    "lag": 3,
    "version": "1",
    "workers": 5,
}
STATUS = {
    "id": "bb22",
    "role": "standby",
    "since": "2026-01-01T00:00:00Z",
    "url": "https://two:7373",
    "leader": "https://one:7373",
    "epoch": 4,
    "lag": None,
    "takeover": {
        "at": "2026-01-01T00:00:00Z",
        "before": "aa11",
        "why": "the one before was silent for 3.1 s",
        "cause": "silent",
        "after_s": 3.1,
    },
}


def test_hubs_are_listed(hub, capfd):
    hub.canned["GET", "/hubs"] = (200, {"hubs": [LEADER, STANDBY], "shared": True})
    assert main(["hub", "ls"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].split() == ["aa11", "leader", "https://one:7373", "4", "7", "0.2s", "0"]
    assert lines[2].split() == ["bb22", "standby", "https://two:7373", "4", "5", "0.9s", "3"]
    assert main(["hub", "ls", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["hubs"][1]["lag"] == 3


def test_the_part_of_one_hub_is_told(hub, capfd):
    hub.canned["GET", "/hub/status"] = (200, STATUS)
    assert main(["hub", "status"]) == 0
    told = capfd.readouterr().out
    assert "standby" in told
    assert "loading" in told
    assert "from aa11: the one before was silent for 3.1 s" in told


def test_a_hub_hands_over(hub, capfd):
    hub.canned["POST", "/hub/resign"] = (200, {"resigned": True, "standbys": [STANDBY]})
    assert main(["hub", "resign"]) == 0
    assert "bb22" in capfd.readouterr().out


@pytest.mark.parametrize("words", [["--port", "0", "ls"], ["--store", "postgres://h/d", "status"]])
def test_flags_of_a_hub_that_runs_go_with_no_command(words, capfd):
    assert main(["hub", *words]) == 2
    assert "is for running a hub" in capfd.readouterr().err


def test_a_hub_that_keeps_its_store_in_its_home_is_alone(clean_environment, capfd):
    with running_hub(clean_environment) as own:
        assert main(["hub", "ls"]) == 0
        assert "leader" in capfd.readouterr().out
        assert main(["hub", "status", "-o", "json"]) == 0
        told = json.loads(capfd.readouterr().out)
        assert (told["role"], told["leader"], told["takeover"]) == ("leader", own.url, None)
        assert main(["hub", "resign"]) == 1
        assert "no other hub could lead there" in capfd.readouterr().err
