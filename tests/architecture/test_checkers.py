"""The size, word and generated-file checks fail on what they are there to find, and only on that."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(tool: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / f"{tool}.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def function_of(lines: int, indent: str = "") -> str:
    return f"{indent}def long():\n" + f"{indent}    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("x = 1\n" * 600, 0, "warning: the file has 600 lines"),
        ("x = 1\n" * 601, 1, "error: the file has 601 lines"),
        ("x = 1\n" * 400, 0, ""),
        (function_of(60), 0, ""),
        (function_of(61), 0, "warning: long() has 61 lines"),
        (function_of(70), 0, "warning: long() has 70 lines"),
        (function_of(71), 1, "error: long() has 71 lines"),
        ("@cache\n" + function_of(71), 1, "error: long() has 71 lines"),
        ("class C:\n    async " + function_of(71, "    ").lstrip(), 1, "error: long() has 71 lines"),
    ],
    ids=["600", "601", "400", "f60", "f61", "f70", "f71", "decorated", "async method"],
)
def test_sizes(tmp_path: Path, text: str, code: int, words: str) -> None:
    (tmp_path / "module.py").write_text(text)
    done = run("check_sizes", tmp_path)
    assert done.returncode == code, done.stdout
    assert words in done.stdout
    assert words or not done.stdout


@pytest.mark.parametrize(("modules", "code"), [(12, 0), (13, 1)])
def test_a_room_that_is_too_full(tmp_path: Path, modules: int, code: int) -> None:
    for name in ("__init__", *(f"m{number}" for number in range(modules))):
        (tmp_path / f"{name}.py").write_text("")
    done = run("check_sizes", tmp_path)
    assert done.returncode == code, done.stdout
    assert ("make rooms of it" in done.stdout) == bool(code)


def checkout(folder: Path, name: str, text: str) -> None:
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / name).write_text(text)


# Put together here so that this very file stays clean.
SLASH = "/"
PLANTED = [
    f"home = '{SLASH}work/shared/x'",
    f"see {SLASH}farm/logs for more",
    f"{SLASH}work/main",
    f"index = https:{SLASH * 2}mirror.example{SLASH}simple{SLASH}",
    f"wheel @ https:{SLASH * 2}files.example/dray-1.0-py3-none-any.w" + "hl",
    f"wheel @ file:{SLASH * 3}opt/dray-1.0.tar." + "gz",
    "--index" + "-url mirror",
    "--extra-index" + "-url=mirror",
    "--find" + "-links here",
]


@pytest.mark.parametrize("line", PLANTED)
def test_words_of_one_machine_are_found(tmp_path: Path, line: str) -> None:
    checkout(tmp_path, "notes.md", f"first\n{line}\n")
    done = run("check_words", tmp_path)
    assert done.returncode == 1
    assert "notes.md:2: " in done.stdout


@pytest.mark.parametrize("line", ["a framework/module", "src/work/x", "a simple sentence", "dray-1.0.whl"])
def test_other_words_pass(tmp_path: Path, line: str) -> None:
    checkout(tmp_path, "notes.md", f"{line}\n")
    done = run("check_words", tmp_path)
    assert done.returncode == 0, done.stdout


def test_ignored_files_do_not_count(tmp_path: Path) -> None:
    checkout(tmp_path, "build.log", PLANTED[0])
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert run("check_words", tmp_path).returncode == 0


def test_words_without_a_checkout_is_a_failure(tmp_path: Path) -> None:
    done = run("check_words", tmp_path)
    assert done.returncode != 0
    assert "no git checkout" in done.stderr


@pytest.fixture
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_generated", ROOT / "tools" / "check_generated.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_compared_with_their_source(
    generated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "diagram_source.py").write_text("def text():\n    return 'pending -> running'\n")
    monkeypatch.syspath_prepend(tmp_path)
    rows = (generated.Row("docs/states.md", "diagram_source", "text"),)

    assert generated.run(rows, tmp_path, writes=False) == 1
    assert "docs/states.md is missing" in capsys.readouterr().out

    assert generated.run(rows, tmp_path, writes=True) == 0
    assert (tmp_path / "docs/states.md").read_text() == "pending -> running\n"
    assert generated.run(rows, tmp_path, writes=False) == 0
    capsys.readouterr()

    (tmp_path / "docs/states.md").write_text("pending\n")
    assert generated.run(rows, tmp_path, writes=False) == 1
    assert "+pending -> running" in capsys.readouterr().out


def test_a_row_whose_module_is_gone_is_an_error(generated: ModuleType, tmp_path: Path) -> None:
    rows = (generated.Row("x.md", "dray.no_such_module", "text"),)
    with pytest.raises(ModuleNotFoundError):
        generated.run(rows, tmp_path, writes=True)
