"""The agent put together: detection, supervisor, machine, link; started and stopped.

Stopping the agent stops no task: they belong to the supervisor, and the next agent takes them over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence

import msgspec

from dray import __version__
from dray.agent.decide.machine import Machine
from dray.agent.detect import Detected, detect
from dray.agent.driver import Driver
from dray.agent.fake import list_machines, pretend
from dray.agent.link import keep_dialling
from dray.agent.own_token import OwnToken
from dray.agent.runners.reach import find_obstacle
from dray.agent.supervisor.client import SupervisorError
from dray.agent.supervisor.records.home import Home as SupervisorHome
from dray.agent.tasks.aside import do_aside
from dray.agent.trees.environments import list_builders
from dray.agent.usage.sampling import keep_sampling
from dray.config import AgentConfig
from dray.core.model.capability import Capability
from dray.core.model.specs.ports import read_span
from dray.core.model.units import GB, format_bytes, parse_moment, parse_seconds
from dray.descriptors import raise_file_limit
from dray.errors import DrayError, StoreError
from dray.logfile import make_handler
from dray.presence import Hold, hold, keep_private
from dray.settings_file import list_ignored
from dray.wire.reach.addresses import split_addresses
from dray.wire.reach.dialling import check_url, read_fingerprint

REDETECT_S = 60.0
HOME_CHECK_S = 2.0
GOODBYE = 1001
# Set by Slurm in a job: when its allocation ends.
SLURM_END = "SLURM_JOB_END_TIME"
logger = logging.getLogger("dray.agent")


def run_agent(config: AgentConfig) -> int:
    """Run an agent until it is told to stop."""
    try:
        handler = make_handler(config.log_file, config.log_file_bytes, config.log_files)
    except OSError as fault:
        print(
            f"dray worker: the log cannot be written to {config.log_file}: {fault.strerror}", file=sys.stderr
        )
        return 1
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(handlers=[handler], level=logging.INFO, format=form)
    raise_file_limit()
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    for text in list_ignored(config.home):
        logger.warning("%s", text)
    try:
        with contextlib.ExitStack() as stack:
            machines = []
            for each in list_machines(config) if config.fake else [config]:
                OwnToken(each).check_given()
                machines.append((each, stack.enter_context(hold(each.folder, "agent"))))
                for text in keep_private(each.folder):
                    logger.warning("%s", text)
            asyncio.run(_serve_all(machines))
            return 0
    except (DrayError, SupervisorError) as fault:
        print(f"dray worker: {fault}", file=sys.stderr)
        return 1


async def _serve_all(machines: Sequence[tuple[AgentConfig, Hold]]) -> None:
    """One agent, or those of some fake machines, until they are told to stop or one of them cannot go on."""
    told = asyncio.Event()
    serving = [asyncio.create_task(_serve(config, held, told)) for config, held in machines]
    await asyncio.wait(serving, return_when=asyncio.FIRST_EXCEPTION)
    told.set()
    await asyncio.wait(serving)
    for ended in serving:
        ended.result()


async def _serve(config: AgentConfig, held: Hold, told: asyncio.Event) -> None:
    for url in split_addresses(config.hub):
        check_url(url)
    if config.fingerprint:
        read_fingerprint(config.fingerprint)
    home = config.folder / "worker"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = await do_aside(_look, config)
    machine = make_machine(config, found)
    if SupervisorHome(str(home)).forget_copied():
        logger.warning("this home is a copy: what runs in the original is left alone and not spoken for")
    driver = Driver(config, machine, home)
    machine.calls.obstacle = await do_aside(find_obstacle, config.accounts.values())
    if machine.calls.obstacle:
        logger.warning("functions cannot be called here: %s", machine.calls.obstacle)
    await driver.listen()
    await driver.attach()
    attached = asyncio.Event()
    supervisor = asyncio.create_task(driver.serve_supervisor(attached))
    await attached.wait()
    tasks = [
        supervisor,
        asyncio.create_task(keep_dialling(driver.link, driver.registration, driver.session_over, config)),
        asyncio.create_task(driver.beat()),
        asyncio.create_task(driver.resend()),
        asyncio.create_task(driver.ship()),
        asyncio.create_task(driver.checking.run()),
        asyncio.create_task(_keep_detecting(config, machine)),
        asyncio.create_task(_watch_home(config, held)),
    ]
    if config.sample_s:
        sampling = keep_sampling(machine, home, config.sample_s, driver.cards, real=not config.fake)
        tasks.append(asyncio.create_task(sampling))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    print(
        f"worker {machine.name}: {machine.batch_total} slots, {'made up: ' if config.fake else ''}{_describe(found)}",
        flush=True,
    )
    waiting = asyncio.create_task(told.wait())
    done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    await driver.drain()
    driver.stop_listening()
    await driver.link.close(GOODBYE, "the agent stops; its tasks go on")
    await _cancel(tasks)
    with contextlib.suppress(OSError):
        await driver.dismiss_supervisor()
    for ended in done - {waiting}:
        ended.result()


def _look(config: AgentConfig) -> Detected:
    """What this machine has, or what a fake one is said to have."""
    return pretend(config) if config.fake else detect(config.allow_software_vulkan, config.backend or None)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Ask until each has ended: a task group whose members fail at that very moment swallows the first request."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.2)


def make_machine(config: AgentConfig, found: Detected) -> Machine:
    """Settle what this worker offers: flags before detection."""
    resend_ms = tuple(round(delay * 1000) for delay in config.result_resend_s)
    builds = list_builders()
    labels = {**builds, **found.labels, **config.labels}
    slots = config.slots or found.usable_cores
    ready = slots if config.runners < 0 else config.runners
    incarnation = secrets.token_hex(8)
    within_ms = round(config.start_within_s * 1000)
    machine = Machine(
        config.name, incarnation, slots, config.service_slots, resend_ms, labels, ready, within_ms
    )
    machine.capability, machine.devices = _offer(config, found), tuple(found.devices)
    machine.resources = dict(config.resources)
    ends_at_s = read_end(config.ends_at, os.environ.get(SLURM_END, ""))
    machine.said = {"version": __version__} | ({"ends_at": ends_at_s} if ends_at_s else {})
    machine.leases.span = read_span(config.ports)
    machine.calls.pool.task_users = config.accounts
    return machine


async def _keep_detecting(config: AgentConfig, machine: Machine) -> None:
    """Look again from time to time: cards fail and limits change; the next heartbeat says so."""
    while True:
        await asyncio.sleep(REDETECT_S)
        found = await do_aside(_look, config)
        offered = (_offer(config, found), tuple(found.devices))
        if offered != (machine.capability, machine.devices):
            logger.warning("this machine has changed: %s", _describe(found))
        machine.capability, machine.devices = offered


async def _watch_home(config: AgentConfig, held: Hold) -> None:
    """End with the home: what comes to lie in its place has, or will have, an agent of its own."""
    while not held.is_lost():  # noqa: ASYNC110 - a file system tells nobody
        await asyncio.sleep(HOME_CHECK_S)
    raise StoreError(f"the home {config.folder} was removed or replaced: this agent ends with it")


def read_end(said: str, by_slurm: str) -> int:
    """When this machine is taken away, in Unix seconds: as the configuration says, else as Slurm says; 0: unknown."""
    if not said:
        return int(by_slurm) if by_slurm.isdigit() else 0
    if "T" in said.upper():
        return parse_moment(said) // 1000
    return round(time.time() + parse_seconds(said))


def _offer(config: AgentConfig, found: Detected) -> Capability:
    """What was found, with the number of cores that the configuration says instead."""
    if not config.cpus:
        return found.capability
    return msgspec.structs.replace(found.capability, cpu_count=config.cpus)


def _describe(found: Detected) -> str:
    capability = found.capability
    memory = format_bytes(round(capability.memory_gb * GB))
    cards = f"{capability.gpu_count} x {capability.gpu_type}, " if capability.gpu_count else ""
    return f"{capability.gpu_backend}, {cards}{capability.cpu_count:g} cores, {memory}"
