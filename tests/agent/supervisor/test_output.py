"""Output is bytes at absolute offsets: nothing invented, gaps marked, memory bounded."""

from __future__ import annotations

import sys
from pathlib import Path

from dray.agent.supervisor.processes.output import OutputLimits, OutputStream, list_segments, read_output
from dray.agent.supervisor.records.owned_files import Place


def write_pattern(directory: Path, size: int, limits: OutputLimits, chunk: int = 7) -> bytes:
    pattern = bytes(n * 31 % 251 for n in range(size))
    stream = OutputStream(str(directory), "stdout", limits)
    for start in range(0, size, chunk):
        stream.write(pattern[start : start + chunk])
    stream.close()
    assert stream.total_bytes == size
    return pattern


def test_rotation_keeps_the_first_and_the_newest(tmp_path):
    pattern = write_pattern(tmp_path, 1050, OutputLimits(cap_bytes=400, segment_bytes=100))
    assert list_segments(str(tmp_path), "stdout") == [(0, 100), (800, 100), (900, 100), (1000, 50)]
    assert read_output(Place(str(tmp_path)), "stdout", 10, 1000) == (pattern[10:100], 10, 1050)
    assert read_output(Place(str(tmp_path)), "stdout", 100, 1000) == (pattern[800:900], 800, 1050)
    assert read_output(Place(str(tmp_path)), "stdout", 850, 20) == (pattern[850:870], 850, 1050)
    assert read_output(Place(str(tmp_path)), "stdout", 1050, 20) == (b"", 1050, 1050)


def test_every_offset_reads_back(tmp_path):
    pattern = write_pattern(tmp_path, 333, OutputLimits(cap_bytes=1 << 20, segment_bytes=50), chunk=64)
    for offset in range(333):
        data, at, total = read_output(Place(str(tmp_path)), "stdout", offset, 17)
        assert (at, total) == (offset, 333)
        assert data == pattern[offset : offset + len(data)]
        assert data


def test_a_namesake_is_not_mixed_in(tmp_path):
    write_pattern(tmp_path, 500, OutputLimits(cap_bytes=1 << 20, segment_bytes=100))
    pattern = write_pattern(tmp_path, 30, OutputLimits(cap_bytes=1 << 20, segment_bytes=100))
    assert read_output(Place(str(tmp_path)), "stdout", 0, 1000) == (pattern, 0, 30)


def test_nothing_written_leaves_nothing(tmp_path):
    OutputStream(str(tmp_path / "a"), "stdout", OutputLimits()).close()
    assert not (tmp_path / "a").exists()
    assert read_output(Place(str(tmp_path / "a")), "stdout", 5, 10) == (b"", 5, 0)


async def test_no_output_makes_no_folder(rig):
    await rig.result("a-1", "true")
    assert not (rig.home / "attempts").exists()


async def test_streams_are_apart_and_raw(rig):
    program = "import os; os.write(1, bytes(range(256))); os.write(2, b'\\xff\\x00err')"
    result = await rig.result("a-1", sys.executable, "-SIc", program)
    assert rig.output("a-1") == bytes(range(256))
    assert rig.output("a-1", "stderr") == b"\xff\x00err"
    assert result["out"] == {"stdout": 256, "stderr": 5}
    assert (rig.home / "attempts" / "a-1" / "stdout.0").stat().st_mode & 0o777 == 0o600


def read_rss_bytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


async def test_a_huge_line_stays_small_in_memory(rig):
    size = 100 << 20
    before = read_rss_bytes(rig.pid, "VmHWM")
    result = await rig.result("a-1", "head", "-c", str(size), "/dev/zero")
    assert result["out"]["stdout"] == size
    assert read_rss_bytes(rig.pid, "VmHWM") - before < 8 << 20
    segments = list_segments(str(rig.home / "attempts" / "a-1"), "stdout")
    assert sum(length for _, length in segments) <= 64 << 20
    assert segments[0] == (0, 8 << 20)
    assert sum(segments[-1]) == size


async def test_output_can_be_read_while_the_task_runs(rig):
    rig.run(rig.task("a-1", "sh", "-c", "echo early; sleep 1000"))
    await rig.await_output("a-1", b"early\n")
    state = await rig.open()
    assert state["attempts"][0]["out"] == {"stdout": 6, "stderr": 0}
