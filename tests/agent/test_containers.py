"""The command lines by which tasks start in containers, of each tool, against what their manuals say; one of them runs
for real in the end-to-end tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dray.agent.tasks.accounts import OWN
from dray.agent.trees.containers import Containers, Tool, contain, fetch_commands, find_tool, refuse
from dray.agent.trees.environments import _commands
from dray.snapshots.environments import Environment, pack_environment, read_environment


def a_task(**more: Any) -> dict[str, Any]:
    env = {"SECRET": "s3cret", "PATH": "/job/bin", "HOME": "/job/home", "DRAY_SNAPSHOT": "/w/trees/u1"}
    return {
        "uid": "u1", "argv": ["python", "train.py"], "env": env | more.pop("env", {}), "cwd": "/w/trees/u1/sub",
        "epilog": None, "prolog": None, "terminal": False, "memory_bytes": 0, **more,
    }  # fmt: skip


def pairs(words: list[str], flag: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == flag]


def test_the_secret_of_a_task_is_in_no_command_line_and_the_host_is_left_outside() -> None:
    made = contain(Tool("podman", "/usr/bin/podman", init=True), "python:3.12", a_task(), OWN)
    words = made["argv"]
    assert words[:2] == ["/usr/bin/podman", "run"]
    assert words[-3:] == ["python:3.12", "python", "train.py"]
    assert not [word for word in words if "s3cret" in word]
    assert {"SECRET", "DRAY_SNAPSHOT", "DRAY_START"} <= {*pairs(words, "--env")}
    assert not {"PATH", "HOME"} & {*pairs(words, "--env")}
    assert pairs(words, "--mount") == ["type=bind,source=/w/trees/u1,target=/w/trees/u1"]
    assert pairs(words, "--workdir") == ["/w/trees/u1/sub"]
    assert made["env"]["PATH"] == os.environ["PATH"], "the tool is this machine's"
    assert (made["relays"], "--init" in words) == (True, True)


@pytest.mark.parametrize(
    ("tool", "wanted"),
    [
        (Tool("podman", "podman"), ["--device=nvidia.com/gpu=GPU-a", "--device=nvidia.com/gpu=GPU-b"]),
        (Tool("docker", "docker"), ["--gpus", '"device=GPU-a,GPU-b"']),
        (Tool("apptainer", "apptainer"), ["--nv"]),
    ],
)
def test_cards_are_those_that_the_hub_chose(tool: Tool, wanted: list[str]) -> None:
    task = a_task(env={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, memory_bytes=1 << 30)
    words = contain(tool, "team/image:1", task, OWN)["argv"]
    assert [word for word in words if word in wanted] == wanted
    assert ("--memory=1073741824" in words) == (tool.kind != "apptainer")
    without = contain(tool, "team/image:1", a_task(), OWN)["argv"]
    assert not [word for word in without if word in wanted]


def test_what_a_task_leaves_is_taken_away_before_its_own_epilog() -> None:
    made = contain(Tool("docker", "docker"), "image", a_task(epilog=["mv", "out", "/kept"]), OWN)
    assert made["epilog"][:3] == ["/bin/sh", "-c", made["epilog"][2]]
    assert made["epilog"][4:] == ["docker", "dray-u1", "mv", "out", "/kept"]
    assert contain(Tool("apptainer", "a"), "image", a_task(), OWN)["epilog"] is None


def test_apptainer_runs_files_and_images_of_registries() -> None:
    tool = Tool("apptainer", "/opt/apptainer")
    words = contain(tool, "/data/x.sif", a_task(), OWN)["argv"]
    assert words == [
        "/opt/apptainer", "exec", "--pwd", "/w/trees/u1/sub", "--bind", "/w/trees/u1:/w/trees/u1",
        "/data/x.sif", "python", "train.py",
    ]  # fmt: skip
    assert fetch_commands(tool, "python:3.12") == [["/opt/apptainer", "exec", "docker://python:3.12", "true"]]
    assert fetch_commands(Tool("podman", "p"), "i")[0] == ["p", "image", "exists", "i"]
    assert fetch_commands(Tool("docker", "d"), "i") == [
        ["d", "image", "inspect", "i"],
        ["d", "pull", "--quiet", "i"],
    ]


def test_a_folder_that_cannot_be_named_is_refused_and_never_left_out() -> None:
    with pytest.raises(ValueError, match="cannot be shown to a container"):
        contain(Tool("podman", "p"), "i", a_task(cwd="/w/a,b"), OWN)
    refused = refuse(a_task(epilog=["x"]), "no")
    assert (refused["argv"][-1], refused["epilog"], refused["argv"][0]) == ("no", None, "/bin/sh")


def test_a_tool_is_found_by_what_it_needs(tmp_path: Path) -> None:
    def put(name: str) -> None:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    here = {"PATH": str(tmp_path), "DOCKER_HOST": "tcp://127.0.0.1:1"}
    put("docker")
    found = find_tool(here)
    assert found is not None
    assert found.kind in ("docker", "podman")
    put("podman")
    put("runc")
    found = find_tool(here)
    assert found is not None
    assert (found.kind, found.path) == ("podman", str(tmp_path / "podman"))


def test_notes_say_what_the_next_agent_takes_away(tmp_path: Path) -> None:
    own = Containers(str(tmp_path / "notes"))
    own.tool = Tool("podman", "true")
    assert (own.left(()), own.has("u1")) == ([], False)
    own.note("u1", OWN)
    own.note("u2", OWN)
    assert own.left({"u2"}) == ["u1"]
    own.remove("u1")
    assert (own.left(()), own.has("u1")) == (["u2"], False)


def test_conda_makes_an_environment_where_it_will_be(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text("dependencies: [python=3.12]\n")
    wanted = read_environment(pack_environment({"conda": str(tmp_path / "environment.yml")}))
    assert isinstance(wanted, Environment)
    assert _commands(["/opt/micromamba"], wanted, "/s", "/p") == [
        ["/opt/micromamba", "create", "--yes", "--quiet", "--prefix", "/p", "--file", "/s/environment.yml"]
    ]
    assert _commands(["/opt/conda"], wanted, "/s", "/p") == [
        ["/opt/conda", "env", "create", "--quiet", "--prefix", "/p", "--file", "/s/environment.yml"]
    ]
