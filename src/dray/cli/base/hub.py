"""Find the hub and talk HTTP to it: one connection per request, the token never sent to a stranger.

Owns requests and the reading of refusals; `dray.client.reach.discovery` knows where the hub is. The surprising
rule: the hub is looked up again at every connection, because one that restarts may come back on another port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from dray import __version__
from dray.client.reach.discovery import NoHub, Target, count_known, find_target, site_of
from dray.client.reach.http import connect
from dray.config import ClientConfig
from dray.core.model.units import format_seconds
from dray.errors import DrayError, HubUnavailable, InvalidConfig, NotLeader, Problem
from dray.presence import find_holder
from dray.wire.reach.dialling import MIN_SEQ_HEADER, SEQ_HEADER, TURN_HEADER, Stranger
from dray.wire.reach.http_line import BROKEN, HubConnection

API = "/api/v1"
STREAM_SILENCE_S = 60.0
_CHUNK = 1 << 16
_LEAST_PAUSE_S = 0.1
# By then one that stands by leads, if any is there.
TAKEOVER_S = 15.0
Answer = TypeVar("Answer")


class HubAway(HubUnavailable):
    """A known hub does not answer now. `sent`: whether the request may have reached it.

    `leader`: where another one leads, as one that stands by says.
    """

    def __init__(self, message: str, sent: bool = False, leader: str = "") -> None:
        super().__init__(message)
        self.sent, self.leader = sent, leader


class HubDead(HubAway):
    """The hub of this home does not answer, and its process is gone."""


class HubRefusal(DrayError):
    """The hub understood and said no; `code` is the hub's own."""

    def __init__(
        self, status: int, code: str, message: str, problems: Sequence[Problem], retry_after_s: float
    ) -> None:
        super().__init__(message, problems)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
        self.exit_code = 1


class Stream:
    """An answer that arrives bit by bit. It ends quietly on silence; a break raises `HubAway`."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def header(self, name: str) -> str:
        """One header of the answer; empty where it has none of that name."""
        return self._response.headers.get(name, "")

    def chunks(self) -> Iterator[bytes]:
        while True:
            try:
                data = self._response.read1(_CHUNK)
            except TimeoutError:
                return
            except BROKEN as error:
                raise HubAway(f"the connection broke: {_reason(error)}", sent=True) from None
            if not data:
                return
            yield data


class Hub:
    """The hub as the command line sees it: JSON in, JSON out, or a stream."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        # The last turn that the hub spoke of, in its own words and as a number, for as long as this command runs:
        # whichever hub is asked next has to know of it.
        self._turn = self._seq = ""

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        extra_s: float = 0.0,
    ) -> Any:
        """Ask and read the whole answer; `extra_s` is how long a long poll may take beyond the usual."""
        timeout_s, patient_until = self.config.timeout_s + extra_s, 0.0
        # What may be asked again, though it may have been done already.
        again = method == "GET" or "Idempotency-Key" in (headers or {})
        while True:
            try:
                return self._fail_over(
                    lambda: self._call_once(method, path, query, body, headers, timeout_s), again
                )
            except HubRefusal as refusal:
                if refusal.status != 429:
                    raise
                if not patient_until:
                    patient_until = time.monotonic() + self.config.away_s
                    _say_busy(refusal, self.config.away_s)
                if time.monotonic() + refusal.retry_after_s > patient_until:
                    raise
                time.sleep(max(refusal.retry_after_s, _LEAST_PAUSE_S))

    def get(self, path: str, query: Mapping[str, Any] | None = None, extra_s: float = 0.0) -> Any:
        return self.call("GET", path, query, extra_s=extra_s)

    def stream(
        self, path: str, query: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Stream:
        """Open an answer that goes on; refusals are raised here, before the first byte."""

        def begin() -> Stream:
            connection, response = self._open("GET", path, query, None, headers, STREAM_SILENCE_S)
            if response.status >= 300:
                with contextlib.closing(connection):
                    raise _read_refusal(response, _read_all(response), self.config)
            return Stream(connection, response)

        return self._fail_over(begin, True)

    def _fail_over(self, ask: Callable[[], Answer], again: bool) -> Answer:
        """Ask the hub that leads, of several addresses whichever that is. What may have been done is asked `again` only
        where that does no harm; with one address it is asked once.
        """
        site, known = site_of(self.config), count_known(self.config)
        until = time.monotonic() + TAKEOVER_S
        while True:
            try:
                answer = ask()
            except HubAway as away:
                at_once = site.tell(away.leader, known) if away.leader else site.miss(known)
                if not site.is_plural or (away.sent and not again) or time.monotonic() > until:
                    raise
                if not at_once:
                    time.sleep(_LEAST_PAUSE_S)
            else:
                site.reached()
                return answer

    def _call_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> Any:
        connection, response = self._open(method, path, query, body, headers, timeout_s)
        with contextlib.closing(connection):
            data = _read_all(response)
        if response.status >= 300:
            raise _read_refusal(response, data, self.config)
        try:
            return json.loads(data) if data else {}
        except ValueError:
            raise _not_a_hub(find_target(self.config).url) from None

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        target = find_target(self.config)
        given = {key: value for key, value in (query or {}).items() if value not in (None, "")}
        url = f"{API}{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
        sent = {
            "User-Agent": f"dray/{__version__}",
            **({TURN_HEADER: self._turn} if self._turn else {}),
            **({MIN_SEQ_HEADER: self._seq} if self._seq else {}),
            **(headers or {}),
        }
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        connection = connect(target, timeout_s)
        _dial(connection, target)
        try:
            response = connection.ask(method, url, payload, sent)
        except http.client.BadStatusLine as error:
            connection.close()
            if isinstance(error, http.client.RemoteDisconnected):
                raise HubAway(f"the hub at {target.url} closed the connection", sent=True) from None
            raise _not_a_hub(target.url) from None
        except BROKEN as error:
            connection.close()
            raise HubAway(f"the hub at {target.url} does not answer: {_reason(error)}", sent=True) from None
        self._turn = response.headers.get(TURN_HEADER, "") or self._turn
        self._seq = response.headers.get(SEQ_HEADER, "") or self._seq
        return connection, response


def _dial(connection: HubConnection, target: Target) -> None:
    import ssl

    try:
        connection.connect()
    except Stranger as fault:
        # Whoever took its place may be gone before the hub is back: a follower asks again.
        raise HubAway(fault.message) from None
    except ssl.SSLCertVerificationError as error:
        raise InvalidConfig(
            f"the certificate of {target.url} is not trusted ({error.verify_message}): give --fingerprint sha256:… as"
            " the hub prints it, or --cafile"
        ) from None
    except socket.gaierror as error:
        raise NoHub(
            f"there is no host {target.parts.hostname!r} ({error.strerror}): look at DRAY_HUB or --hub"
        ) from None
    except OSError as error:
        if target.home is not None and find_holder(target.home, "hub") is None:
            raise HubDead(
                f"the hub at {target.url} is not running (its process is gone): start it with `dray up`"
            ) from None
        raise HubAway(f"no hub answers at {target.url}: {_reason(error)}") from None


def _read_all(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except BROKEN as error:
        raise HubAway(f"the connection broke: {_reason(error)}", sent=True) from None


def _read_refusal(response: http.client.HTTPResponse, data: bytes, config: ClientConfig) -> DrayError:
    from dray.wire.reach.refusals import read_refusal

    refusal = read_refusal(data)
    if refusal is None:
        if response.status in (502, 503, 504):
            return HubAway(f"the hub is not ready ({response.status} {response.reason})", sent=True)
        return _not_a_hub(find_target(config).url, f"{response.status} {response.reason}")
    if isinstance(refusal, NotLeader):
        return HubAway(f"no hub leads where this was asked: {refusal.message}", leader=refusal.leader)
    if response.status == 503:
        return HubAway(f"the hub is not ready: {refusal.message}", sent=True)
    again_s = _retry_after(response.headers.get("Retry-After"))
    return HubRefusal(response.status, refusal.code, refusal.message, refusal.problems, again_s)


def _say_busy(refusal: HubRefusal, limit_s: float) -> None:
    """Tell a person why nothing happens: the hub takes no more for now, and the request is sent again by itself."""
    text = f"dray: {refusal.message}; waiting for up to {format_seconds(limit_s)}"
    print(text, file=sys.stderr, flush=True)


def _retry_after(text: str | None) -> float:
    try:
        return max(0.0, float(text or 1))
    except ValueError:
        return 1.0


def _not_a_hub(url: str, seen: str = "") -> DrayError:
    return NoHub(
        f"what answers at {url} is not a dray hub{f' ({seen})' if seen else ''}: look at DRAY_HUB or --hub"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def job_path(job_id: str, rest: str = "") -> str:
    """The path of a job; an id is data, so it is quoted whatever it holds."""
    return f"/jobs/{quote(job_id, safe='')}{rest}"


def worker_path(worker_id: str, rest: str = "") -> str:
    return f"/workers/{quote(worker_id, safe='')}{rest}"
