"""Ports that a job asks for by name: `http`, or `http=8080` for that very one.

A plain name gets a port of its worker's range when it starts there. Both kinds are part of matching, as named
resources: of each fixed one a worker has one, of leased ones as many as it says, without end where it says nothing. No
name that people give can hold a blank, so none is taken for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dray.core.model.specs.values import quote
from dray.errors import InvalidInput

NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
NAME_RULE = "a letter, then up to 31 of a-z 0-9 -"
MAX_PORTS = 16
# Those below belong to the system: programs without its rights cannot have them.
LOWEST, HIGHEST = 1024, 65535
_PREFIX = "port "
# Those of its worker's range that an attempt is given, whichever they are.
LEASED = "leased ports"
# What a worker has of them that does not say: no sum of asks comes near it.
UNCOUNTED = 1 << 40


class PortAsk(NamedTuple):
    """One port by its name; `number` 0 leaves it to the worker which one it is."""

    name: str
    number: int = 0


def read_port(text: str) -> PortAsk:
    """Read what `port_problem` has let through."""
    name, _, number = text.partition("=")
    return PortAsk(name, int(number or 0))


def ports_problem(value: Any) -> str:
    """Why a list of ports cannot be accepted; empty where it can."""
    if not isinstance(value, list):
        return f"must be a list of names such as http, or http=8080, got {quote(value)}"
    if len(value) > MAX_PORTS:
        return f"names {len(value)} ports, the limit is {MAX_PORTS}"
    for position, item in enumerate(value):
        if fault := _problem(item):
            return f"item {position} {fault}"
    asks = [read_port(item) for item in value]
    for part in ("name", "number"):
        seen = [getattr(ask, part) for ask in asks if getattr(ask, part)]
        if twice := next((one for one in seen if seen.count(one) > 1), None):
            return f"gives {twice} twice: each port has a {part} of its own"
    return ""


def _problem(item: Any) -> str:
    if not isinstance(item, str):
        return f"must be text, got {quote(item)}"
    name, mark, number = item.partition("=")
    if NAME.fullmatch(name) is None:
        return f"must be a name ({NAME_RULE}) or NAME=NUMBER, got {quote(item)}"
    if mark and not (re.fullmatch(r"[1-9][0-9]{0,4}", number) and LOWEST <= int(number) <= HIGHEST):
        return f"must give a number from {LOWEST} to {HIGHEST} after =, got {quote(item)}"
    return ""


def read_span(text: str) -> range:
    """Read a worker's range of ports, FIRST-LAST; raises `InvalidInput`."""
    found = re.fullmatch(r"\s*([0-9]{1,5})\s*-\s*([0-9]{1,5})\s*", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not LOWEST <= first <= last <= HIGHEST:
        raise InvalidInput(f"must be FIRST-LAST with ports from {LOWEST} to {HIGHEST}, got {text!r}")
    return range(first, last + 1)


def port_needs(ports: Sequence[str], unnamed: int) -> dict[str, int]:
    """Ports as named resources: fixed ones each, others as a number, `unnamed` ones of the worker's range with them."""
    numbers = [read_port(text).number for text in ports]
    leased = numbers.count(0) + unnamed
    fixed = {f"{_PREFIX}{number}": 1 for number in numbers if number}
    return {**fixed, LEASED: leased} if leased else fixed


def is_port(resource: str) -> bool:
    """Whether a named resource is a fixed port, of which every worker has one."""
    return resource.startswith(_PREFIX)


def name_ports(ports: Sequence[str], numbers: Sequence[int]) -> dict[str, int]:
    """Numbers by the names that were given to them, as far as they are known."""
    return dict(zip((read_port(text).name for text in ports), numbers, strict=False))


def port_variables(names: Sequence[str], numbers: Sequence[int]) -> dict[str, str]:
    """What a task finds in its environment: the first as DRAY_PORT, each by its name."""
    variables = {"DRAY_PORT": str(numbers[0])} if numbers else {}
    for name, number in zip(names, numbers, strict=False):
        variables[f"DRAY_PORT_{name.upper().replace('-', '_')}"] = str(number)
    return variables


def amount_of(amounts: Mapping[str, int], name: str) -> int:
    """How much there is of a named resource."""
    amount = amounts.get(name)
    return amount_unsaid(name) if amount is None else amount


def amount_unsaid(name: str) -> int:
    """How much a worker has of a named resource that it does not speak of: of each fixed port one."""
    return 1 if is_port(name) else UNCOUNTED if name == LEASED else 0


def count_ports(number: int) -> str:
    """So many ports, in words."""
    return "1 port" if number == 1 else f"{number} ports"
