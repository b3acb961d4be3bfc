"""The pages of the dashboard as they are served to anybody: what was built, read once, and under which headers.

Nothing of a cluster is in them, so they need no token. Paths of pages are the page's own: each `/ui/…` gives the one
document. Files under `/assets/` are named by their content and never change. Where a hub came without them, it says how
to get them.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dray.errors import NotFound

FOLDER = Path(__file__).parent / "built"
ROOT, PAGES, ASSETS = b"/", b"/ui", b"/assets/"
MEDIA = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".woff2": b"font/woff2",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_GUARDS = (
    (b"content-security-policy", POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_ANEW = (b"cache-control", b"no-cache")
_MISSING = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>dray</title>
<h1>This hub came without its dashboard</h1>
<p>Everything else of it works: <code>dray ps</code>, <code>dray top</code>, <code>dray why</code>.</p>
<p>In a clone of the project <code>./dev web</code> builds it; an installation gets it with
<code>pip install --force-reinstall --no-deps .</code> from a clone. Then load this page again.</p>
</html>
"""


class Page(NamedTuple):
    """An answer of status, headers and body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _File(NamedTuple):
    media: bytes
    plain: bytes
    packed: bytes


def is_page(raw_path: bytes) -> bool:
    """Whether a path is the dashboard's."""
    return raw_path in (ROOT, PAGES) or raw_path.startswith((PAGES + b"/", ASSETS))


def show(method: str, raw_path: bytes, headers: Mapping[bytes, bytes]) -> Page:
    """What a browser gets; raises NotFound for a file that is not there."""
    if raw_path in (ROOT, PAGES):
        return Page(303, [(b"location", PAGES + b"/"), (b"content-length", b"0"), *_GUARDS], b"")
    files = built()
    asked = raw_path[1:].decode("latin-1") if raw_path.startswith(ASSETS) else "index.html"
    if not files and asked == "index.html":
        return _answer(method, 503, MEDIA[".html"], _MISSING, [_ANEW])
    if (found := files.get(asked)) is None:
        raise NotFound("the dashboard has no such file: load the page anew")
    more = [_FOREVER if raw_path.startswith(ASSETS) else _ANEW, (b"vary", b"accept-encoding")]
    if b"gzip" in headers.get(b"accept-encoding", b"") and found.packed:
        return _answer(method, 200, found.media, found.packed, [*more, (b"content-encoding", b"gzip")])
    return _answer(method, 200, found.media, found.plain, more)


def elsewhere(leader: str, raw_path: bytes) -> Page:
    """Of a hub that stands by: the pages are at the one that leads."""
    path = raw_path if raw_path.startswith(PAGES + b"/") else PAGES + b"/"
    return Page(307, [(b"location", leader.encode() + path), (b"content-length", b"0"), *_GUARDS], b"")


def build() -> str:
    """Which build of the pages this hub serves; empty where it has none."""
    page = built().get("index.html")
    return hashlib.sha256(page.plain).hexdigest()[:12] if page is not None else ""


def built() -> dict[str, _File]:
    """The files by their names; read when they are first asked for, and again while there were none."""
    return _read() if (FOLDER / "index.html").exists() else {}


@functools.cache
def _read() -> dict[str, _File]:
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if (media := MEDIA.get(path.suffix)) is not None:
            plain = path.read_bytes()
            packed = gzip.compress(plain, 9, mtime=0)
            found[path.relative_to(FOLDER).as_posix()] = _File(
                media, plain, packed if len(packed) < len(plain) else b""
            )
    return found


def _answer(method: str, status: int, media: bytes, body: bytes, more: list[tuple[bytes, bytes]]) -> Page:
    headers = [(b"content-type", media), (b"content-length", b"%d" % len(body)), *more, *_GUARDS]
    return Page(status, headers, b"" if method == "HEAD" else body)
