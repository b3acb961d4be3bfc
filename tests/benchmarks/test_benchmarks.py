"""Every benchmark runs at its quick size, writes a document that reads back, and leaves no process behind.

In a run of the whole suite a third of them, drawn anew each time: they say how fast things are, not whether they hold.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import psutil
import pytest
from benchmarks.catalogue import CATALOGUE
from benchmarks.figures import MISS, OPEN, PASS, Bar, Figure, Report, median_figure, quantile
from benchmarks.table import read_reports, write_table
from tests import warm

ROOT = Path(__file__).parents[2]
LIMIT_S = 100
SHARE = 3


@pytest.fixture
def drawn(request: pytest.FixtureRequest) -> None:
    """Skips what is not drawn in this run; who names these tests runs all of them."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    named = any("benchmarks" in argument for argument in request.config.invocation_params.args)
    name = request.node.callspec.params["name"]
    if not named and zlib.crc32(f"{run} {name}".encode()) % SHARE:
        pytest.skip("not drawn this time: ./dev test tests/benchmarks runs all of them")


def run_quick(name: str, results: Path, scratch: Path) -> subprocess.CompletedProcess[bytes]:
    """Forked with its hubs and agents, but for the one whose matter is a start, and those that fork their own."""
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--results", str(results)]
    env = {**os.environ, "TMPDIR": str(scratch)}
    scratch.chmod(0o711)  # servers of databases run as another user
    if name in ("start_times", "hub_takeovers", "gateway_fleet"):
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=LIMIT_S, check=False)
    return warm.run(command, LIMIT_S, cwd=ROOT, env=env)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("name", CATALOGUE)
def test_benchmark_runs_and_writes_its_document(name: str, tmp_path: Path, short_tmp: Path) -> None:
    done = run_quick(name, tmp_path, short_tmp)
    assert done.returncode == 0, done.stderr.decode()
    report = msgspec.json.decode((tmp_path / f"{name}.json").read_bytes(), type=Report)
    assert report.name == name
    assert report.quick
    assert report.machine["cores"] >= 1
    assert report.machine["fsync_p50_us"] > 0
    assert report.figures
    for figure in report.figures.values():
        assert math.isfinite(figure.value)
        assert figure.what
        assert all(floor > 0 for floor in figure.floors.values())
    table = (tmp_path / "README.md").read_text()
    assert all(figure.what in table for figure in report.figures.values())
    assert not list(short_tmp.glob("drayb-*")), "a home was left behind"
    left = [line for process in psutil.process_iter() if str(short_tmp) in (line := _command_line(process))]
    assert not left, "a process was left behind"


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = run_quick("no-such", tmp_path, tmp_path)
    assert done.returncode == 2
    assert b"no benchmark is called no-such" in done.stderr


def test_verdicts() -> None:
    bars = [Bar(at_least=0.9, of="peer"), Bar(at_least=0.3, of="floor")]

    def judge(value: float, **floors: float) -> str:
        return Figure("it", "tasks/s", value, floors=floors, bars=bars).verdict()

    assert judge(100, peer=100, floor=300) == PASS
    assert judge(80, peer=100, floor=100) == MISS
    assert judge(100, peer=100, floor=400) == MISS
    # A peer that could not be measured leaves the question open, unless what is known misses already.
    assert judge(100, floor=300) == OPEN
    assert judge(100, floor=400) == MISS
    assert Figure("it", "ms", 10.0, bars=[Bar(at_most=10.0)]).verdict() == PASS
    assert Figure("it", "ms", 10.1, bars=[Bar(at_most=10.0)]).verdict() == MISS
    assert Figure("it", "ms", 10.1).verdict() == ""


def test_medians_and_quantiles() -> None:
    figure = median_figure("it", "s", [3.0, 1.0, 2.0])
    assert (figure.value, figure.runs) == (2.0, [3.0, 1.0, 2.0])
    assert quantile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert quantile(list(range(100)), 0.99) == 99
    assert quantile([7.0], 0.99) == 7.0


def test_table_keeps_the_order_of_the_catalogue(tmp_path: Path) -> None:
    machine = {"cores": 2, "load_1m": 0.1, "fsync_p50_us": 90.0}
    for name in reversed(CATALOGUE[:3]):
        figures = {"only": Figure(f"figure of {name}", "s", 1.5, bars=[Bar(at_most=1.0)], note="because")}
        report = Report(name, f"python -m benchmarks {name}", False, "now", 1.0, machine, figures)
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(report))
    write_table(tmp_path, CATALOGUE)
    assert [report.name for report in read_reports(tmp_path, CATALOGUE)] == list(CATALOGUE[:3])
    table = (tmp_path / "README.md").read_text()
    places = [table.index(f"| figure of {name} |") for name in CATALOGUE[:3]]
    assert places == sorted(places)
    assert "| 1.5 s |" in table
    assert "| ≤ 1 | miss |" in table
