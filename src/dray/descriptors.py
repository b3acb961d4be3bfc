"""How many files a process may have open: raised for daemons, kept as it was for what they start.

Many systems begin at 1,024, for the sake of programs that are none of ours. Surprising rule: programs that a daemon
starts get back what it found, since some of them walk all descriptors up to the limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

try:
    import resource
except ImportError:  # no such limit on this system
    resource = None  # type: ignore[assignment]  # asked about before every use

MOST = 1 << 20
_found: list[tuple[int, int]] = []


def file_limit() -> int:
    """How many files this process may have open."""
    if resource is None:
        return MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one, within reason."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if file_limit() >= wanted:
        return
    # Some systems know a lower ceiling than they tell.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _found[:] = [(soft, hard)]


@contextlib.contextmanager
def limits_as_found() -> Iterator[None]:
    """Put the limit back for as long as it takes to start a program."""
    if not _found or resource is None:
        yield
        return
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, _found[0])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, raised)
