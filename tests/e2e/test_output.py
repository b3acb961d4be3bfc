"""What tasks print: whole, in bounded memory, byte for byte, there after the end and after a restart of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, wait_for

MIB = 1 << 20
FLOOD = """
import sys
for _ in range(100):
    sys.stdout.write("x" * (1 << 20))
print(flush=True)
print("the end", file=sys.stderr)
"""


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.home_site("output lies in a file")
def test_100_mb_in_one_line(site: Cluster) -> None:
    assert site.hub is not None
    agent = site.agents["w1"]
    before = {pid: peak_bytes(pid) for pid in (site.hub.pid, agent.pid, agent.supervisor_pid)}
    job_id = site.submit("python3", "-c", FLOOD)
    assert site.wait_state(job_id, limit_s=60)["state"] == "succeeded"

    wait_for(lambda: site.logs(job_id, stream="stderr") == b"the end\n", "the other stream is whole")
    (file,) = (site.home / "output" / job_id).iterdir()
    # The worker keeps the first segment and the newest ones, 56 to 64 MiB of them; what was shipped before adds to it.
    wait_for(lambda: file.stat().st_size > 55 * MIB, "what the worker kept arrives")
    wait_for(lambda: b"dropped here]" in site.logs(job_id, stream="stdout"), "the gap is marked")
    for pid, bytes_before in before.items():
        assert peak_bytes(pid) - bytes_before < 32 * MIB, f"{pid} grew with the output"
    shown = site.logs(job_id, stream="stdout")
    assert 55 * MIB < len(shown) < 65 * MIB
    assert shown.count(b"dropped here]") < 20, "the gap is marked, not every piece of it"
    assert file.stat().st_size <= 65 * MIB


def test_any_byte_is_kept(site: Cluster) -> None:
    script = "import os; os.write(1, bytes(range(256)) + b'\\xff\\x00no newline')"
    job_id = site.submit("python3", "-c", script)
    site.wait_state(job_id, "succeeded")
    expected = bytes(range(256)) + b"\xff\x00no newline"
    wait_for(lambda: site.logs(job_id) == expected, "every byte is there")
    assert site.dray("logs", job_id, "-o", "json").code == 0


def test_run_shows_all_that_was_printed_before_the_end(site: Cluster) -> None:
    done = site.dray("run", "--", "sh", "-c", "seq 1 20000; echo last >&2")
    lines = done.out.splitlines()
    assert sorted(lines, key=lambda line: int(line) if line.isdigit() else 1 << 30) == [
        *map(str, range(1, 20001)),
        "last",
    ]


def test_output_outlives_the_hub(site: Cluster) -> None:
    flag = site.folder / "flag"
    job_id = site.submit("sh", "-c", f"echo before; while ! [ -e {flag} ]; do sleep 0.05; done; echo after")
    wait_for(lambda: site.logs(job_id) == b"before\n", "the first line arrives")
    ended = site.submit("echo", "early")
    site.wait_state(ended, "succeeded")
    wait_for(lambda: site.logs(ended) == b"early\n", "the output arrives")
    site.kill_hub()
    flag.touch()
    site.start_hub()
    assert site.logs(ended) == b"early\n"
    site.wait_state(job_id, "succeeded")
    wait_for(lambda: site.logs(job_id) == b"before\nafter\n", "what was printed meanwhile follows, once")


def test_output_of_a_result_that_came_too_late_to_count(site: Cluster) -> None:
    agent, flag = site.agents["w1"], site.folder / "late"
    job_id = site.submit("sh", "-c", f"echo before; while ! [ -e {flag} ]; do sleep 0.05; done; echo after")
    uid = site.wait_running(job_id)["attempts"][0]["uid"]
    wait_for(lambda: site.logs(job_id) == b"before\n", "the first line arrives")
    agent.kill()
    flag.touch()
    wait_for(lambda: uid in [record["uid"] for record in agent.records("exit")], "it ends without its agent")
    assert site.call("POST", f"/jobs/{job_id}/cancel", {}).status == 200
    site.start_agent("w1")
    job = site.wait_state(job_id, "killed")
    assert job["attempts"][0]["phase"] == "succeeded"
    wait_for(lambda: site.logs(job_id) == b"before\nafter\n", "what it printed is there all the same")


def test_a_job_without_output_has_empty_logs(site: Cluster) -> None:
    job_id = site.submit("true")
    site.wait_state(job_id, "succeeded")
    assert site.logs(job_id) == b""
    assert site.dray("logs", "-f", job_id).out == ""


SWEEP = "echo first $DRAY_ARRAY_INDEX; printf 'last %s' $DRAY_ARRAY_INDEX; test $DRAY_ARRAY_INDEX != 7"
NUMBERED = [[f" {index} | first {index}", f" {index} | last {index}"] for index in range(10)]
NUMBERED += [[f"{index} | first {index}", f"{index} | last {index}"] for index in (10, 11)]


def printed(site: Cluster, job_id: str, *words: str) -> list[str]:
    done = site.dray("logs", job_id, *words)
    assert done.code == 0, done
    return done.out.splitlines()


def test_the_output_of_a_whole_array_stands_under_the_numbers_of_its_tasks(site: Cluster) -> None:
    job_id = site.submit("sh", "-c", SWEEP, array={"first": 0, "last": 11})
    site.wait_state(job_id, "failed")
    whole = [line for lines in NUMBERED for line in lines]
    wait_for(lambda: printed(site, job_id) == whole, "every line of every task, in order")
    assert printed(site, job_id, "--failed") == NUMBERED[7]
    assert printed(site, job_id, "--tail", "1") == [lines[1] for lines in NUMBERED]
    assert site.dray("logs", f"{job_id}/7", "--failed").code == 2


def test_following_a_whole_array_loses_no_line(site: Cluster) -> None:
    """Some are followed while they run, some begin and end between two looks."""
    gate = site.folder / "open"
    command = (
        f"echo first $DRAY_ARRAY_INDEX; until [ -e {gate} ]; do sleep 0.05; done; {SWEEP.partition(';')[2]}"
    )
    job_id = site.submit("sh", "-c", command, array={"first": 0, "last": 11})
    watcher, shown = site.begin("logs", "-f", job_id, name="array")
    wait_for(lambda: b" 0 | first 0\n" in shown.read_bytes(), "it follows what runs")
    gate.touch()
    assert watcher.wait(60) == 0
    lines = shown.read_text().splitlines()
    assert sorted(lines) == sorted(line for lines in NUMBERED for line in lines)
    for first, last in NUMBERED:
        assert lines.index(first) < lines.index(last)
