"""A real Slurm of Debian's packages, on this machine: it starts agents that run work, know their end, and go again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.cluster import Cluster, wait_for

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
pytestmark = [
    pytest.mark.skipif(
        bool(MISSING), reason=f"apt-get install slurm-wlm munge: there is no {' '.join(MISSING)}"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root alone"),
]
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
CredType=cred/munge
SlurmctldPort={control}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SchedulerParameters=sched_interval=1
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """A hub beside a Slurm of one node."""
    cluster = Cluster()
    folder = cluster.folder / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    conf = CONF.format(host=host, folder=folder, control=free_port(), node=free_port())
    (folder / "slurm.conf").write_text(conf)
    cluster.env |= {"SLURM_CONF": str(folder / "slurm.conf"), "DRAY_HUB_LAUNCH_LOOK_S": "0.2"}
    # Homes of agents lie in the machine's temporary folder.
    cluster.env["TMPDIR"] = str(cluster.folder)
    options = (
        "socket=munge.sock",
        "key-file=key",
        "pid-file=munge.pid",
        "log-file=munge.log",
        "seed-file=seed",
    )
    munge = [
        "munged",
        "--foreground",
        "--force",
        *(f"--{name.replace('=', f'={folder}/')}" for name in options),
    ]
    daemons = []
    try:
        for words in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
            with (folder / f"{words[0]}.out").open("wb") as log:
                daemons.append(
                    subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **cluster.env})
                )
            if words is munge:
                wait_for((folder / "munge.sock").exists, "munged listens")
        wait_for(lambda: "idle" in ask(cluster, "sinfo", "-h", "-o", "%T"), "the node is there")
        cluster.start_hub()
        yield cluster
    finally:
        ask(cluster, "scancel", "--me", "--full")
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)
        cluster.close()


def ask(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        words, env={**os.environ, **cluster.env}, capture_output=True, text=True, check=False
    )
    return done.stdout


def launches(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.call("GET", "/launches?all=true").json["launches"])


def test_slurm_starts_agents_that_run_work_know_their_end_and_go(slurm: Cluster) -> None:
    launch = {
        "slurm": {"partition": "main"},
        "offers": {"cpus": 1, "labels": {"site": "slurm"}},
        "most": 2,
        "wait_s": 0,
        "idle_s": 2,
        "life_s": 3600,
        "program": str(Path(sys.executable).with_name("dray")),
    }
    policy = slurm.folder / "policy.yaml"
    policy.write_text(yaml.safe_dump({"providers": {"cluster": {"launch": launch}}}))
    assert slurm.dray("config", "apply", str(policy)).code == 0
    jobs = [slurm.submit("sh", "-c", "echo $SLURM_JOB_NAME", require=["site=slurm"]) for _ in range(3)]
    # One that lasts longer than any allocation gets no machine.
    long = slurm.submit("true", require=["site=slurm"], max_runtime_s=7200)
    for job in jobs:
        slurm.wait_state(job, "succeeded")
    found = launches(slurm)
    assert 0 < len(found) <= 2
    assert all(one["handle"].isdigit() for one in found)
    ends_at = slurm.call("GET", f"/workers/{found[0]['id']}").json.get("ends_at")
    assert ends_at, "its allocation ends, and it says so"
    assert slurm.logs(jobs[0]) == b"\n", "what Slurm set for the agent is not the task's to see"
    said = ask(slurm, "squeue", "--me", "-h", "-o", "%j %T")
    assert not said or f"dray-{found[0]['id']}" in said
    wait_for(lambda: all(one["state"] == "ended" for one in launches(slurm)), "they go when they idle")
    wait_for(lambda: not ask(slurm, "squeue", "--me", "-h").strip(), "Slurm has none of them any more")
    assert slurm.job(long)["state"] == "pending"
    slurm.call("POST", f"/jobs/{long}/cancel")
