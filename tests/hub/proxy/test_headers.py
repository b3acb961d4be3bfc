"""What of requests and answers is passed on, beside what the server in front has refused already."""

from __future__ import annotations

import pytest

from dray.errors import InvalidInput, NotFound
from dray.hub.proxy.addresses import choose_domain, read_asked
from dray.hub.proxy.headers import check_framing, give_back, pass_on, write_pass

PATH = read_asked(b"hub:1", b"/proxy/web/x", "localhost")
HOST = read_asked(b"Web.localhost:1", b"/x", "localhost")


@pytest.mark.parametrize(
    "given",
    [
        [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"5"), (b"content-length", b"5")],
        [(b"content-length", b"5, 5")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
    ],
)
def test_one_framing_only(given: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidInput):
        check_framing(given)


def test_framing_that_everybody_agrees_on() -> None:
    for given in ([], [(b"content-length", b"5")], [(b"transfer-encoding", b"Chunked")]):
        check_framing(given)


def test_lines_cannot_be_broken_into_two() -> None:
    assert PATH is not None
    for pair in ((b"x", b"a\r\nb: c"), (b"x\n", b"a"), (b"x", b"a\0")):
        with pytest.raises(InvalidInput):
            pass_on([pair], PATH, "http", "")


def test_which_service_is_meant() -> None:
    assert PATH is not None
    assert (PATH.name, PATH.path, PATH.prefix) == ("web", b"/x", b"/proxy/web")
    assert HOST is not None
    assert (HOST.name, HOST.path, HOST.prefix) == ("web", b"/x", b"")
    assert read_asked(b"localhost:1", b"/x", "localhost") is None
    assert read_asked(b"a.web.localhost", b"/x", "localhost") is None, "one label"
    assert read_asked(b"web.localhost", b"/api/v1/jobs", "") is None
    assert read_asked(b"hub", b"/api/v1/jobs", "") is None
    with pytest.raises(NotFound):
        read_asked(b"hub", b"/proxy/%2e%2e/x", "")
    assert choose_domain("", "127.0.0.1") == "localhost"
    assert choose_domain("", "0.0.0.0") == ""
    assert choose_domain(".Services.Example.org", "0.0.0.0") == "services.example.org"


def test_an_answer_keeps_its_own_headers_and_none_of_its_neighbour() -> None:
    assert PATH is not None
    assert HOST is not None
    given = [
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"7"),
        (b"strict-transport-security", b"max-age=1"),
        (b"content-security-policy", b"default-src 'self'"),
        (b"location", b"//elsewhere/x"),
    ]
    kept = [(b"content-security-policy", b"default-src 'self'"), (b"location", b"//elsewhere/x")]
    assert give_back(given, HOST, lengthless=True) == kept
    fenced = give_back(given, PATH, lengthless=True)
    assert fenced[:-1] == kept
    assert fenced[-1][1].startswith(b"sandbox ")
    assert b"allow-same-origin" not in fenced[-1][1]


def test_the_pass_is_for_one_path_or_one_host_and_no_script_reads_it() -> None:
    assert PATH is not None
    assert HOST is not None
    assert write_pass("p", PATH, True, 60) == (
        b"dray_pass=p; Path=/proxy/web/; HttpOnly; Max-Age=60; SameSite=None; Secure"
    )
    assert write_pass("p", HOST, False, 60) == b"dray_pass=p; Path=/; HttpOnly; Max-Age=60; SameSite=Lax"
