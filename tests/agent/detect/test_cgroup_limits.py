"""Limits read from made-up trees of every layout, and from a real control group where one can be made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.agent.detect.cpu import (
    count_allowed_cores,
    count_listed,
    detect_cpu,
    read_cpuset_cores,
    read_quota_cores,
)
from dray.agent.detect.memory import detect_memory, read_limit_bytes, read_physical_bytes

V1_UNLIMITED = "9223372036854771712"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def make_tree(root: Path, cgroup: list[str], mountinfo: list[str], files: dict[str, str]) -> Path:
    files = {"proc/self/cgroup": "\n".join(cgroup), "proc/self/mountinfo": "\n".join(mountinfo), **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_v2_takes_the_tightest_limit_up_the_hierarchy(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        ["0::/user.slice/dray.service"],
        [V2_MOUNT],
        {
            "sys/fs/cgroup/user.slice/dray.service/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/dray.service/memory.max": "max",
            "sys/fs/cgroup/user.slice/dray.service/cpuset.cpus.effective": "0-1,4",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000",
            "sys/fs/cgroup/user.slice/memory.max": "4000000000",
            "sys/fs/cgroup/cpuset.cpus.effective": "0-7",
        },
    )
    assert read_quota_cores(root) == 1.5
    assert read_cpuset_cores(root) == 3
    assert read_limit_bytes(root) == 4_000_000_000


def test_v1_container_whose_mount_root_is_its_own_group(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        ["5:cpu,cpuacct:/docker/abc", "4:memory:/docker/abc", "0::/"],
        [
            "40 39 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
            "41 39 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        ],
        {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
            "sys/fs/cgroup/memory/memory.stat": "cache 12\nhierarchical_memory_limit 3000000000\ntotal_rss 5",
        },
    )
    assert read_quota_cores(root) == 2.5
    assert read_limit_bytes(root) == 3_000_000_000


@pytest.mark.parametrize("group", ["/elsewhere/abc", "/../../other.slice"])
def test_group_outside_the_mount_reads_the_mount_point(tmp_path: Path, group: str) -> None:
    mount = "41 39 0:31 /kubepods/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw"
    root = make_tree(tmp_path, [f"0::{group}"], [mount], {"sys/fs/cgroup/memory.max": "1000"})
    assert read_limit_bytes(root) == 1000


def test_hybrid_layout_reads_v1_beside_an_empty_v2(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path,
        ["4:memory:/box", "1:cpu:/", "0::/"],
        [
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
            "35 31 0:32 / /sys/fs/cgroup/memory\\040v1 rw - cgroup cgroup rw,memory",
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ],
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory v1/box/memory.limit_in_bytes": "2000000000",
            "sys/fs/cgroup/unified/cgroup.procs": "1",
        },
    )
    assert read_quota_cores(root) is None
    assert read_limit_bytes(root) == 2_000_000_000


def test_no_limits_leaves_affinity_and_physical_memory(tmp_path: Path) -> None:
    cpu, memory = detect_cpu(tmp_path), detect_memory(tmp_path)
    assert (cpu.cores, cpu.usable_cores) == (count_allowed_cores(), count_allowed_cores())
    assert memory.memory_bytes == read_physical_bytes() > 10**8
    assert "no lower control group limit" in memory.note


def test_unlimited_sentinel_of_v1_is_no_limit(tmp_path: Path) -> None:
    mount = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED}
    root = make_tree(tmp_path, ["4:memory:/"], [mount], files)
    assert detect_memory(root).memory_bytes == read_physical_bytes()


def test_fraction_of_a_core_is_offered_as_such_with_one_slot(tmp_path: Path) -> None:
    root = make_tree(tmp_path, ["0::/"], [V2_MOUNT], {"sys/fs/cgroup/cpu.max": "33333 100000"})
    found = detect_cpu(root)
    assert (found.cores, found.usable_cores) == (0.333, 1)
    assert "quota of 0.33333" in found.note


@pytest.mark.parametrize(
    ("text", "count"), [("0", 1), ("0-3", 4), ("0-3,8,10-11", 7), ("", 0), ("x", 0), ("0-", 1), ("1-y", 0)]
)
def test_kernel_core_lists(text: str, count: int) -> None:
    assert count_listed(text) == count


def test_broken_limit_files_are_no_limit(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "5 0", "sys/fs/cgroup/memory.max": "much"}
    root = make_tree(tmp_path, ["0::/", "nonsense"], [V2_MOUNT, "short line"], files)
    assert read_quota_cores(root) is None
    assert read_limit_bytes(root) is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity mask")
def test_affinity_mask_of_a_real_process() -> None:
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); {_PRINT_CPU}"
    assert _run(code) == "1.0 1"


_PRINT_CPU = "from dray.agent.detect.cpu import detect_cpu as d; f = d(); print(f.cores, f.usable_cores)"
_PRINT_MEMORY = "from dray.agent.detect.memory import detect_memory as d; print(d().memory_bytes)"


def _run(code: str, enter: Path | None = None) -> str:
    if enter is not None:
        code = f"import os; open({str(enter / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextlib.contextmanager
def _make_group(controller: str, limits: dict[str, dict[str, str]]) -> Iterator[Path]:
    """A real group of v1 or v2 with limits set; skips where this system does not let us make one."""
    v1 = Path("/sys/fs/cgroup", controller)
    group = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"dray-test-{uuid.uuid4().hex[:12]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for name, text in limits["v1" if v1.is_dir() else "v2"].items():
            (group / name).write_text(text)
        yield group
    except OSError as error:
        pytest.skip(f"no {controller} limit can be set here: {error}")
    finally:
        group.rmdir()


def test_quota_of_a_real_control_group() -> None:
    v1 = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "75000"}
    with _make_group("cpu", {"v1": v1, "v2": {"cpu.max": "75000 100000"}}) as group:
        assert _run(_PRINT_CPU, enter=group) == "0.75 1"


def test_memory_limit_of_a_real_control_group() -> None:
    size = 512 * 2**20
    with _make_group(
        "memory", {"v1": {"memory.limit_in_bytes": str(size)}, "v2": {"memory.max": str(size)}}
    ) as group:
        assert _run(_PRINT_MEMORY, enter=group) == str(size)
