"""Workers as jobs of Slurm: `sbatch` an agent, `scancel` it, `squeue` what there is.

The agent's line goes to sbatch on its standard input, so that the token is in no list of processes. The job's name is
the launch's; `singleton` keeps a second one of the same name from running beside the first, whoever submitted it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.model.policies.launching import Launch, Offered, SlurmSite
from dray.hub.launchers.base import PREFIX, Machine, Order, SiteFault
from dray.hub.launchers.commands import run

_FORMAT = "%i|%j|%T|%R"
_OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "COMPLETING", "NODE_FAIL", "PREEMPTED", "DEADLINE")


class Slurm:
    """One launcher's Slurm."""

    def __init__(self, name: str, launch: Launch) -> None:
        assert launch.slurm is not None
        self._name, self._launch, self._site = name, launch, launch.slurm

    async def start(self, order: Order) -> str:
        argv = ["sbatch", "--parsable", "--job-name", PREFIX + order.id, *words_of(self._launch, self._site)]
        said = await run(argv, self._launch.command_s, script_of(order))
        handle = said.strip().partition(";")[0]
        if not handle.isdigit():
            raise SiteFault(f"sbatch answered {said.strip()[:100]!r}, which is no job id", unsure=True)
        return handle

    async def end(self, launch_id: str, handle: str) -> None:
        whom = [handle] if handle else ["--me", "--name", PREFIX + launch_id]
        try:
            await run(["scancel", *whom], self._launch.command_s)
        except SiteFault as fault:
            if "Invalid job id" not in fault.message:
                raise

    async def machines(self) -> list[Machine] | None:
        said = await run(["squeue", "--me", "--noheader", "--format", _FORMAT], self._launch.command_s)
        return list(read_queue(said, self._name))


# Slurm tells its jobs when they end from 23.02 on; before that they have to ask.
_TELL_END = """\
if [ -z "${SLURM_JOB_END_TIME:-}" ]; then
  end="$(squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null)"
  end="$(date -d "$end" +%s 2>/dev/null)" && export SLURM_JOB_END_TIME="$end"
fi
"""


def script_of(order: Order) -> str:
    """The agent as a batch script; it hears when its allocation ends."""
    head, _, agent = order.script.partition("exec ")
    return f"{head}{_TELL_END}exec {agent}"


def words_of(launch: Launch, site: SlurmSite) -> Iterator[str]:
    """What sbatch is asked for: the offer, as one task on one node, and the site's own words last."""
    offers: Offered = launch.offers
    yield from (
        "--dependency",
        "singleton",
        "--no-requeue",
        "--nodes",
        "1",
        "--ntasks",
        "1",
        "--export",
        "ALL",
    )
    yield from (
        "--cpus-per-task",
        str(max(1, round(offers.cpus))),
        "--output",
        "/dev/null",
        "--chdir",
        "/tmp",
    )
    if offers.memory:
        yield from ("--mem", f"{max(1, offers.memory >> 20)}M")
    if offers.gpus:
        kind = f"{offers.gpu_type.lower()}:" if offers.gpu_type else ""
        yield from ("--gres", f"gpu:{kind}{offers.gpus}")
    if launch.life_s:
        yield from ("--time", str(max(1, round(launch.life_s / 60))))
    if site.partition:
        yield from ("--partition", site.partition)
    if site.account:
        yield from ("--account", site.account)
    yield from site.args


def read_queue(said: str, launcher: str) -> Iterator[Machine]:
    """The jobs of a launcher among the lines of squeue."""
    for line in said.splitlines():
        handle, _, rest = line.partition("|")
        name, _, rest = rest.partition("|")
        state, _, why = rest.partition("|")
        if is_of(name, launcher) and state not in _OVER:
            waits = f" {why}" if state == "PENDING" else ""
            yield Machine(name.removeprefix(PREFIX), handle.strip(), f"{state.lower()}{waits}")


def is_of(name: str, launcher: str) -> bool:
    """Whether a machine's name says that it was started for a launch of this launcher."""
    if not name.startswith(f"{PREFIX}{launcher}-"):
        return False
    rest = name.removeprefix(f"{PREFIX}{launcher}-").split("-")
    return len(rest) == 2 and all(part.isdigit() for part in rest)
