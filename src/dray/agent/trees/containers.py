"""Tasks in containers, by whichever of podman, docker and apptainer this machine has.

The command of a task becomes the command line of that tool, which then is the task's process as any other: it runs as
the task's account, its output is the task's, its exit code too, and signals are handed on by it. What it leaves is
removed when the task has ended, and where nobody was there to do so, by the next agent. Surprising rule: the tool sees
the values of variables by their names alone, so that no secret stands in a command line.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from dray.agent.tasks.accounts import Account
from dray.agent.tasks.environment import FALLBACK_PATH

LABEL = "containers"
# Of the host, and of no meaning inside.
_HOST = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
        *("CONDA_PREFIX", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINERS_CONF"),
    )
)
_OF_TOOL = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINERS_CONF")
_RUNTIMES = ("crun", "runc", "runsc", "kata-runtime", "youki")
_SYSTEM = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/libexec/podman", "/usr/lib/podman")
_DOCKER_SOCKET = "/var/run/docker.sock"
_PLAIN = re.compile(r"[^,\n\"]+")
REMOVAL_S, REMOVALS = 30.0, 3
# Takes the container away whatever became of it, and then does what the job itself wants done at its end.
_AFTERWARDS = '"$1" rm -f "$2" > /dev/null 2>&1; shift 2; [ $# -eq 0 ] || exec "$@"'


class Tool(NamedTuple):
    """What runs containers here. `init`: it can put a first process in, which hands signals on and buries the dead."""

    kind: str
    path: str
    init: bool = False


def find_tool(environ: Mapping[str, str] = os.environ) -> Tool | None:
    """The first of them that could run anything here. Only looked for, never run."""
    path = os.pathsep.join((environ.get("PATH", FALLBACK_PATH), *_SYSTEM))

    def find(*names: str) -> str:
        return next((found for name in names if (found := shutil.which(name, path=path))), "")

    if (podman := find("podman")) and find(*_RUNTIMES):
        return Tool("podman", podman, bool(find("catatonit")))
    if (docker := find("docker")) and ("DOCKER_HOST" in environ or os.access(_DOCKER_SOCKET, os.W_OK)):
        return Tool("docker", docker, bool(find("docker-init", "tini")))
    if apptainer := find("apptainer", "singularity"):
        return Tool("apptainer", apptainer)
    return None


def name_of(uid: str) -> str:
    """What the container of an attempt is called."""
    return f"dray-{uid}"


def fetch_commands(tool: Tool, image: str) -> list[list[str]]:
    """What is tried, one after another, until one of them goes well: then the image is here."""
    if tool.kind == "apptainer":
        return [[tool.path, "exec", _reference(image), "true"]]
    look = ["image", "exists"] if tool.kind == "podman" else ["image", "inspect"]
    return [[tool.path, *look, image], [tool.path, "pull", "--quiet", image]]


def contain(tool: Tool, image: str, task: dict[str, Any], account: Account) -> dict[str, Any]:
    """The task as it is started: by the tool, in the image. Raises ValueError for what cannot be named to it."""
    # The tool is a program of this machine, whatever home and path the job has brought from elsewhere.
    own = {name: os.environ[name] for name in _OF_TOOL if name in os.environ}
    task = {**task, "env": {**task["env"], **own, **account.variables()}}
    if tool.kind == "apptainer":
        return {**task, "argv": _apptainer(tool, image, task)}
    name = name_of(task["uid"])
    afterwards = ["/bin/sh", "-c", _AFTERWARDS, "sh", tool.path, name, *(task["epilog"] or ())]
    return {**task, "argv": _run(tool, image, task, name, account), "epilog": afterwards, "relays": True}


def _run(tool: Tool, image: str, task: dict[str, Any], name: str, account: Account) -> list[str]:
    words = [tool.path, "run", "--rm", "--name", name, "--network", "host", "--log-driver", "none"]
    words += ["--security-opt", "label=disable", "--entrypoint", "", "--workdir", task["cwd"]]
    words += ["--init"] if tool.init else []
    words += ["--interactive", "--tty"] if task["terminal"] else []
    words += [f"--memory={task['memory_bytes']}"] if task["memory_bytes"] else []
    words += [f"--ulimit={limit}" for limit in _limits()]
    uid, gid = (account.uid, account.gid) if account.is_foreign else (os.geteuid(), os.getegid())
    if uid:
        # As whom the tool itself runs: what it writes to the folders of the task is the task's own.
        words += ["--userns=keep-id"] if tool.kind == "podman" else ["--user", f"{uid}:{gid}"]
    cards = [one for one in task["env"].get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    if cards and tool.kind == "podman":
        words += [f"--device=nvidia.com/gpu={card}" for card in cards]
    elif cards:
        words += ["--gpus", f'"device={",".join(cards)}"']
    for folder in _folders(task):
        words += ["--mount", f"type=bind,source={folder},target={folder}"]
    # The mark by which the supervisor knows whose a process is comes on top of what the agent gives.
    for variable in (*sorted(task["env"].keys() - _HOST), "DRAY_START"):
        words += ["--env", variable]
    return [*words, image, *task["argv"]]


def _limits() -> list[str]:
    """Those that a task has anyway. More processes than there can be on a machine podman has not to give itself."""
    most = _most_processes()
    found = []
    for name in ("nofile", "nproc"):
        pair = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        if name == "nproc":
            pair = tuple(most if one < 0 else min(one, most) for one in pair)  # type: ignore[assignment]  # still two
        found.append(f"{name}={pair[0]}:{pair[1]}")
    return found


def _most_processes() -> int:
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 32_768


def _apptainer(tool: Tool, image: str, task: dict[str, Any]) -> list[str]:
    """It is no more than the process itself in another root: it shares all else, variables too."""
    words = [tool.path, "exec", "--pwd", task["cwd"]]
    words += ["--nv"] if task["env"].get("CUDA_VISIBLE_DEVICES") else []
    for folder in _folders(task):
        words += ["--bind", f"{folder}:{folder}"]
    return [*words, _reference(image), *task["argv"]]


def _reference(image: str) -> str:
    return image if "://" in image or image.startswith("/") else f"docker://{image}"


def _folders(task: dict[str, Any]) -> list[str]:
    """What of the host a task finds inside as well: its tree, the folder it starts in, and its session."""
    environment = task["env"]
    found = [environment.get("DRAY_SNAPSHOT", ""), os.path.dirname(environment.get("DRAY_SESSION", ""))]
    kept = [folder for folder in found if folder]
    if not any(task["cwd"] == folder or task["cwd"].startswith(f"{folder}/") for folder in kept):
        kept.append(task["cwd"])
    for folder in kept:
        if _PLAIN.fullmatch(folder) is None or ":" in folder:
            raise ValueError(
                f"the folder {folder!r} cannot be shown to a container: its name holds , : or quotes"
            )
    return kept


def refuse(task: dict[str, Any], why: str) -> dict[str, Any]:
    """A task that says why it cannot start in its container, and ends: never outside of one."""
    return {**task, "argv": ["/bin/sh", "-c", 'echo "$0" >&2; exit 125', why], "prolog": None, "epilog": None}


class Containers:
    """Those of one agent, as far as somebody may have to remove them. `folder` holds a note for each."""

    def __init__(self, folder: str) -> None:
        self.tool = find_tool()
        self._folder = folder

    def note(self, uid: str, account: Account) -> None:
        """One is about to be."""
        if self.tool is not None and self.tool.kind != "apptainer":
            os.makedirs(self._folder, 0o700, exist_ok=True)
            with open(f"{self._folder}/{uid}", "w", encoding="ascii") as file:
                file.write(f"{account.uid} {account.gid}" if account.is_foreign else "")

    def has(self, uid: str) -> bool:
        """Whether one is noted that may have to be removed."""
        return os.path.exists(f"{self._folder}/{uid}")

    def left(self, live: Collection[str]) -> list[str]:
        """Whose are noted that do not run any more."""
        with contextlib.suppress(FileNotFoundError):
            return [uid for uid in os.listdir(self._folder) if uid not in live]
        return []

    def remove(self, uid: str) -> None:
        """Take one away, if it is there; blocks."""
        path = f"{self._folder}/{uid}"
        try:
            with open(path, encoding="ascii") as file:
                owner = file.read().split()
        except FileNotFoundError:
            return
        if self.tool is not None:
            who: dict[str, Any] = {}
            if owner:
                who = {"user": int(owner[0]), "group": int(owner[1]), "extra_groups": []}
            # While the epilog is at it as well, one of the two may be told that it is being removed already.
            for _ in range(REMOVALS):
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    done = subprocess.run(
                        [self.tool.path, "rm", "-f", name_of(uid)],
                        check=False,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        timeout=REMOVAL_S,
                        **who,
                    )
                    if done.returncode == 0:
                        break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
