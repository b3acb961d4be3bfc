"""Where the hub is and how to prove that it is the right one.

Reads the configuration and the files that a hub leaves in its home; opens no connection but the one
that sees whether anybody listens. Two surprising rules: the hub is looked up again at
every dial, because one that restarts may come back on another port; and the token of the home goes only to the hub of
that home or to this machine, where `wire/reach/dialling.py` knows who listens.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from dray.config import ClientConfig, find_home, load_client
from dray.errors import HubUnavailable, Unauthenticated
from dray.presence import find_holder, read_hub_note
from dray.wire.reach.addresses import Addresses, split_addresses
from dray.wire.reach.dialling import LOOPBACK, SOCKET_NAME, Way, check_url

if TYPE_CHECKING:
    import ssl

_KNOCK_S = 2
_sites: dict[tuple[Path, str], Addresses] = {}


class NoHub(HubUnavailable):
    """Nothing says where a hub could be: asking again would not help."""


class Target(NamedTuple):
    """Where the hub is and how to prove that it is the right one. `home` is told of the hub of this home."""

    url: str
    token: str
    fingerprint: str
    cafile: Path | None
    home: Path | None = None
    socket: str = ""
    hub_user: str = ""

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def way(self) -> Way:
        return Way(self.url, self.socket, self.hub_user)


def settle_config(home: str | Path | None = None, **flags: Any) -> ClientConfig:
    """Settle where to look: what was given, then the environment, then the file of the home."""
    return load_client(find_home(home), flags)


def find_target(config: ClientConfig) -> Target:
    """Settle address and token: what was given by hand, else the hub of this home."""
    note = read_hub_file(config.home)
    own_url = str(note.get("url", "")).rstrip("/")
    known = split_addresses(config.hub) or ([own_url] if own_url else [])
    if not known:
        raise NoHub(
            f"no hub is running here (looked in {config.home}): start one with `dray up`, or set DRAY_HUB"
        )
    site = site_of(config)
    url = site.choose(known)
    check_url(url)
    is_own = url == own_url
    # The hub of this home knows which one leads its site, and that one has the same token and certificate.
    is_ours = is_own or (bool(site.told) and known == [own_url])
    token = config.token
    if not token and (is_ours or urlsplit(url).hostname in LOOPBACK):
        token = _read_token(config.home)
    if not token:
        raise Unauthenticated(f"no token for {url}: set DRAY_TOKEN, or give a token")
    pinned = config.fingerprint or (str(note.get("fingerprint", "")) if is_ours else "")
    socket = config.home / SOCKET_NAME if is_own and note.get("socket") else config.hub_socket
    home = config.home if is_own else None
    return Target(url, token, pinned, config.cafile, home, str(socket or ""), config.hub_user)


def site_of(config: ClientConfig) -> Addresses:
    """Where the site of this configuration was last found: one for the whole process."""
    return _sites.setdefault((config.home, config.hub), Addresses())


def count_known(config: ClientConfig) -> int:
    """How many addresses are known beforehand."""
    return max(1, len(split_addresses(config.hub)))


def trust(target: Target) -> ssl.SSLContext | None:
    """What TLS must prove there; None for plain HTTP."""
    if target.parts.scheme != "https":
        return None
    from dray.wire.reach.pinned_tls import make_context

    return make_context(target.url, target.fingerprint, target.cafile)


def read_hub_file(home: Path) -> dict[str, Any]:
    """What the hub of this home wrote when it began to listen; empty where there is none."""
    try:
        return read_hub_note(home)
    except (OSError, ValueError) as fault:
        raise NoHub(
            f"{home / 'hub.json'} cannot be read ({fault}): restart the hub, or set DRAY_HUB"
        ) from None


def find_silent(home: Path) -> str | None:
    """The address of a hub that this home names and that does not answer, empty where it names none; None if it does.

    One that lives is not asked further: what is wrong with it is found, and told, by whoever dials.
    """
    url = str(read_hub_file(home).get("url", ""))
    if not url:
        return ""
    return None if find_holder(home, "hub") is not None or _listens(url) else url


def _listens(url: str) -> bool:
    """Whether something takes connections there: the process may be another machine's, or another container's."""
    try:
        parts = urlsplit(url)
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection(address, _KNOCK_S):
            return True
    except (OSError, ValueError):
        return False


def _read_token(home: Path) -> str:
    try:
        return (home / "token").read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as fault:
        raise Unauthenticated(f"{home / 'token'} cannot be read: {fault.strerror}") from None
