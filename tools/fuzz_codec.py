"""Spoilt frames, specs and texts through everything that reads them before the hub acts: codecs, checks, parsers.

A reader may refuse with the errors it names and with nothing else, must end soon, and must not keep memory. Runs in
several processes; a block of frames depends on the seed and its own number alone, so a finding can be repeated.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from tools.fuzz_frames import Spoiler, copy_tree, spoil_once
from tools.fuzz_samples import NUMBERS, OTHERS, SPEC, TEXTS

from dray.core.model import units
from dray.core.model.specs.check import check_spec
from dray.errors import Conflict, DrayError, InvalidInput, InvalidSpec
from dray.hub.access.caller import Caller
from dray.hub.decisions.commands import read_specs
from dray.hub.workers.inbound import outcome_of
from dray.wire.messages import client as client_messages
from dray.wire.messages.codec import Codec
from dray.wire.messages.hub import hub_codec
from dray.wire.messages.worker import JobResult, check_message, worker_codec

BLOCK = 2_000
SLOW_S = 0.5
MEMORY_BYTES = 256 << 20
Read = Callable[[Any], None]
_SUBMIT_REFUSALS = (InvalidInput, InvalidSpec, Conflict)


class Target(NamedTuple):
    """One reader, and how inputs for it are drawn."""

    name: str
    weight: int
    draws: Callable[[random.Random], Callable[[], Any]]
    read: Read
    refusals: tuple[type[DrayError], ...] = (InvalidInput,)


class Tally(NamedTuple):
    """What one process saw. `findings` maps a place in the code to how often and with what."""

    inputs: Counter[str]
    refused: Counter[str]
    findings: dict[str, dict[str, Any]]
    slowest_s: float
    grown_bytes: int


def targets() -> list[Target]:
    """Every reader that a peer or a user can reach."""
    found = []
    for binary in (True, False):
        word = "msgpack" if binary else "json"
        found += [
            Target(f"worker {word}", 4, _frames("worker", binary), _worker_reader(worker_codec(binary))),
            Target(f"hub {word}", 2, _frames("hub", binary), _hub_reader(hub_codec(binary))),
        ]
    found += [
        Target("client requests", 4, _frames("client", True), _read_client, _SUBMIT_REFUSALS),
        Target("client replies", 1, _frames("client", True), _read_replies),
        Target("specs", 3, _draw_specs, _read_spec, (InvalidSpec,)),
        Target("units", 2, _draw_texts, _read_units),
    ]
    return found


def run_block(seed: int, number: int, tally: Tally) -> Tally:
    """Read one block of inputs."""
    rng = random.Random(seed * 1_000_003 + number)
    choices = [target for target in targets() for _ in range(target.weight)]
    target = choices[number % len(choices)]
    draw = target.draws(rng)
    slowest = tally.slowest_s
    for _ in range(BLOCK):
        given = draw()
        began = time.thread_time()
        try:
            target.read(given)
        except DrayError as refusal:
            tally.refused[target.name] += 1
            if not isinstance(refusal, target.refusals):
                _note(tally, target, given, refusal)
        except Exception as fault:  # noqa: BLE001 - the very thing that is looked for
            _note(tally, target, given, fault)
        span = time.thread_time() - began
        slowest = max(slowest, span)
        if span > SLOW_S:
            _note(tally, target, given, TimeoutError(f"took {span:.2f} s of processor time"))
    tally.inputs[target.name] += BLOCK
    return tally._replace(slowest_s=slowest)


def run_codec(count: int, seed: int, processes: int) -> dict[str, Any]:
    """Read at least `count` inputs over several processes, and sum up."""
    blocks = -(-count // BLOCK)
    began = time.perf_counter()
    shares = [(seed, range(first, blocks, processes)) for first in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        tallies = pool.map(_run_share, shares, chunksize=1)
    return _sum_up(tallies, time.perf_counter() - began, seed, processes)


def _run_share(share: tuple[int, range]) -> Tally:
    seed, numbers = share
    tally = Tally(Counter(), Counter(), {}, 0.0, 0)
    before = 0
    for place, number in enumerate(numbers):
        tally = run_block(seed, number, tally)
        if place == len(numbers) // 10:
            before = _peak_bytes()
    return tally._replace(grown_bytes=_peak_bytes() - before)


def _sum_up(tallies: list[Tally], wall_s: float, seed: int, processes: int) -> dict[str, Any]:
    inputs: Counter[str] = sum((tally.inputs for tally in tallies), Counter())
    refused: Counter[str] = sum((tally.refused for tally in tallies), Counter())
    findings: dict[str, dict[str, Any]] = {}
    for tally in tallies:
        for place, found in tally.findings.items():
            known = findings.setdefault(place, {**found, "times": 0})
            known["times"] += found["times"]
    grown = max(tally.grown_bytes for tally in tallies)
    if grown > MEMORY_BYTES:
        findings["memory"] = {"times": 1, "fault": f"the peak grew by {grown} bytes, {MEMORY_BYTES} allowed"}
    return {
        "inputs": inputs.total(),
        "frames": inputs.total() - inputs["specs"] - inputs["units"],
        "by_target": dict(inputs),
        "refused": dict(refused),
        "per_s": round(inputs.total() / wall_s),
        "wall_s": round(wall_s, 1),
        "processes": processes,
        "seed": seed,
        "slowest_ms": round(1e3 * max(tally.slowest_s for tally in tallies), 2),
        "peak_growth_mib": round(grown / (1 << 20), 1),
        "findings": findings,
    }


def _note(tally: Tally, target: Target, given: Any, fault: Exception) -> None:
    frames = traceback.extract_tb(fault.__traceback__)
    ours = [frame for frame in frames if "dray" in frame.filename] or list(frames)
    place = f"{ours[-1].filename.rpartition('dray/')[2]}:{ours[-1].lineno}" if ours else "time"
    known = tally.findings.setdefault(
        f"{target.name}: {type(fault).__name__} at {place}",
        {"times": 0, "fault": ascii(str(fault))[:300], "example": _spell(given)},
    )
    known["times"] += 1


def _spell(given: Any) -> str:
    try:
        return ascii(given)[:400]
    except ValueError:
        return "holds a whole number that Python refuses to spell"


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# --- readers ----------------------------------------------------------------------------------------------------------


def _worker_reader(codec: Codec) -> Read:
    def read(frame: Any) -> None:
        for envelope in codec.split(frame):
            body = codec.open(envelope)
            check_message(envelope.type, body)
            if isinstance(body, JobResult):
                outcome_of(body)

    return read


def _hub_reader(codec: Codec) -> Read:
    def read(frame: Any) -> None:
        for envelope in codec.split(frame):
            codec.open(envelope)

    return read


def _read_client(frame: Any) -> None:
    for request in client_messages.read_requests(frame):
        body = client_messages.open_request(request)
        if isinstance(body, client_messages.Submit):
            read_specs(_CALLER, body.specs, 100_000)
        elif isinstance(body, client_messages.Plan):
            read_specs(_CALLER, [body.spec], 1)


def _read_replies(frame: Any) -> None:
    client_messages.read_replies(frame)


def _read_spec(raw: Any) -> None:
    check_spec(raw)


def _read_units(text: Any) -> None:
    for parse in _PARSERS:
        try:
            parse(text)
        except InvalidInput:
            continue


_CALLER = Caller("t", "fuzz", ("admin",))
_PARSERS: tuple[Callable[[Any], Any], ...] = (
    units.parse_bytes,
    units.parse_minutes,
    units.parse_seconds,
    units.parse_array,
    units.parse_gpus,
)


# --- draws ------------------------------------------------------------------------------------------------------------


def _frames(union: str, binary: bool) -> Callable[[random.Random], Callable[[], Any]]:
    return lambda rng: Spoiler(union, binary, rng).draw


def _draw_specs(rng: random.Random) -> Callable[[], Any]:
    """Specs as Python values: also what no decoder gives, since job files and callers of the library bring it."""
    odd: list[Any] = [float("nan"), float("inf"), 10**5000, -(10**5000), "\ud800", b"\xff", (1, 2)]
    odd += [{1: 2}, {"\ud800": 1}, {None: 1}]
    packed = msgspec.msgpack.encode(SPEC)

    def atom() -> Any:
        return copy_tree(rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS, odd))))

    def draw() -> Any:
        spec = msgspec.msgpack.decode(packed)
        for key in rng.sample(list(spec), rng.randrange(len(spec))):
            del spec[key]
        for _ in range(rng.choice((1, 1, 2, 5))):
            spoil_once(spec, rng, atom)
        return spec

    return draw


def _draw_texts(rng: random.Random) -> Callable[[], Any]:
    pieces = "1 0 . - : % e g gib ms s m h d A100 inf nan _ ٣ k b + 0x1".split()
    pieces += ["9" * 50, "9" * 400, "9" * 5000, " ", "\0", "\ud800", "\n"]

    def draw() -> Any:
        return "".join(_some(rng, pieces))

    return draw


def _some(rng: random.Random, pieces: list[str]) -> Iterator[str]:
    for _ in range(rng.choice((1, 2, 3, 5, 8))):
        yield rng.choice(pieces)
