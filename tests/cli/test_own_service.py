"""Agents and hubs as services of their host: what is written, that systemd reads it, and what becomes of a token."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from dray.cli.machines import own_service
from dray.cli.machines.own_service import HUB, WORKER, Launchd, Systemd, Wanted, keep_token, quote
from dray.cli.main import main

WORDS = ("worker", "start", "--hub", "https://h:7373", "--label", 'a=b c%d$e"f')


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who is not root, with a home of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("DRAY_HOME", str(tmp_path / "dray"))
    monkeypatch.setattr(own_service, "_is_root", lambda: False)
    return tmp_path


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("part", [WORKER, HUB])
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path: Path, part: str, system: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    words = WORDS if part == WORKER else ("hub", "--port", "7373")
    unit = tmp_path / f"dray-{part}.service"
    unit.write_bytes(Systemd(system).text(Wanted(part, tmp_path, words)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_unit_would_be_found(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    unit = tmp_path / "dray-worker.service"
    text = Systemd(True).text(Wanted(WORKER, tmp_path, WORDS))
    unit.write_bytes(text.replace(b"ExecStart=", b"ExecStart=nowhere/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode


def test_whoever_stops_an_agent_leaves_its_tasks_alone(tmp_path: Path) -> None:
    assert b"\nKillMode=process\n" in Systemd(True).text(Wanted(WORKER, tmp_path, WORDS))
    agent = plistlib.loads(Launchd(False).text(Wanted(WORKER, tmp_path, WORDS)))
    assert agent["AbandonProcessGroup"] is True
    assert agent["ProgramArguments"][-len(WORDS) :] == list(WORDS)
    assert agent["EnvironmentVariables"] == {"DRAY_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("a", "a"),
        ("a b", '"a b"'),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        ('"', '"\\""'),
        ("\\", '"\\\\"'),
        ("", '""'),
    ],
)
def test_nothing_in_a_word_means_anything_to_systemd(word: str, quoted: str) -> None:
    assert quote(word) == quoted
    assert quote(word, variables=False) == quoted.replace("$$", "$")


def test_a_token_goes_into_the_home_and_into_no_file_that_others_read(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--hub", "https://h:7373", "--token", "drayjoin_1_secret", "--name", "w1"]
    assert main(["worker", "install", "--no-start", "--", *words]) == 0
    unit = user / ".config/systemd/user/dray-worker.service"
    assert "secret" not in unit.read_text()
    assert "--hub https://h:7373 --name w1" in unit.read_text()
    kept = user / "dray/worker/token"
    assert kept.read_text() == "drayjoin_1_secret\n"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "wrote" in capsys.readouterr().out
    assert main(["worker", "install", "--print", "--", *words]) == 0
    assert "secret" not in capsys.readouterr().out


def test_a_service_that_was_never_installed_is_told_so(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "status"]) == 1
    assert "not installed" in capsys.readouterr().out
    assert main(["worker", "uninstall"]) == 0
    assert "nothing was installed" in capsys.readouterr().err
    assert main(["hub", "uninstall"]) == 0


def test_a_line_that_is_pasted_whole_is_refused(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "install", "--no-start", "--", "dray", "worker", "start"]) != 0
    assert "flags of `dray worker start` alone" in capsys.readouterr().err


def test_tokens_are_found_in_both_spellings(tmp_path: Path) -> None:
    assert keep_token(tmp_path, ["--token=x", "--name", "n"]) == ("--name", "n")
    assert (tmp_path / "worker/token").read_text() == "x\n"
