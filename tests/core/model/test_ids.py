"""Ids, task ids and attempt uids: spelled in one place, read back the same."""

from __future__ import annotations

import pytest

from dray.core.model.ids import LAST_ATTEMPT, attempt_number, attempt_uid, is_id, split_task_id, task_id


@pytest.mark.parametrize("text", ["a", "7", "job-1", "A.b_c-d", "x" * 128])
def test_ids(text: str) -> None:
    assert is_id(text)
    assert split_task_id(text) == (text, -1)


@pytest.mark.parametrize("text", ["", "-a", ".a", "_a", "a/b", "a b", "ä", "a\n", "x" * 129, "../x", "a\0"])
def test_what_is_no_id(text: str) -> None:
    assert not is_id(text)


@pytest.mark.parametrize(("job", "index"), [("job", -1), ("job", 0), ("job", 7), ("job", 9_999_999)])
def test_task_ids_read_back(job: str, index: int) -> None:
    assert split_task_id(task_id(job, index)) == (job, index)


@pytest.mark.parametrize(
    "text", ["job/", "job/01", "job/-1", "job/1/2", "/1", "job/x", "job/²", "job/" + "9" * 10]
)
def test_what_is_no_task_id(text: str) -> None:
    assert split_task_id(text) is None


def test_uids_grow_with_epoch_and_number() -> None:
    uids = [attempt_uid(epoch, seq) for epoch, seq in [(1, 1), (1, 2), (1, 10**9), (2, 1), (10, 1)]]
    numbers = [attempt_number(uid) for uid in uids]
    assert numbers == sorted(numbers)
    assert [f"{number >> 40}-{number & LAST_ATTEMPT}" for number in numbers] == uids


def test_a_keyed_uid_has_the_same_number_and_a_part_that_cannot_be_foreseen() -> None:
    plain, keyed, other = (attempt_uid(3, 7, key) for key in (b"", b"secret", b"another"))
    assert attempt_number(plain) == attempt_number(keyed) == attempt_number(other)
    assert keyed == attempt_uid(3, 7, b"secret"), "no random number is in it"
    assert keyed.startswith("3-7-")
    tags = {
        attempt_uid(3, seq, key).rpartition("-")[2] for seq in range(100) for key in (b"secret", b"another")
    }
    assert len(tags) == 200
    assert {len(tag) for tag in tags} == {12}
    assert is_id(keyed), "it names folders of workers"


@pytest.mark.parametrize(
    "text",
    ["", "1", "-1", "1-", "a-1", "²-1", "1-²", "9" * 9 + "-1", "1-" + "9" * 13, "1-" + "9" * 5000],
)
def test_what_a_peer_may_send_instead_of_a_uid(text: str) -> None:
    assert attempt_number(text) == -1


def test_every_uid_fits_into_a_row_id() -> None:
    assert attempt_number(attempt_uid(2**23 - 1, 2**40 - 1)) < 2**63
