"""The runner of documentation notices what it is there to notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Play = Callable[[str], tuple[int, list[str]]]


def test_a_page_that_is_right_passes(play: Play) -> None:
    page = (
        "```console\n$ echo 12 apples\n7 apples\n$ false\n$ echo $?\n1\n```\n\n```sh\nx=1\ntest $x = 1\n```\n"
    )
    assert play(page) == (4, [])


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```console\n$ echo pears\napples\n```\n", "the page shows 'apples'"),
        ("```console\n$ printf 'a\\nb\\n'\na\n```\n", "more than the page shows"),
        ("```console\n$ echo a\na\nb\n```\n", "nothing more"),
        ("```sh\nfalse\n```\n", "exited with 1"),
        ("```console\n$ exit 0\n$ echo late\nlate\n```\n", "only 0 of 2"),
    ],
)
def test_a_page_that_is_wrong_does_not(play: Play, page: str, complaint: str) -> None:
    _, wrong = play(page)
    assert complaint in "\n".join(wrong)


def test_a_marked_block_is_left_out(play: Play) -> None:
    assert play("<!-- not run: it would hang -->\n```sh\nsleep 1000\n```\n") == (0, [])
    assert play("```python\nraise SystemExit\n```\n") == (0, [])
