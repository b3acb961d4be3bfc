"""Which address of a site is dialled next."""

from __future__ import annotations

from dray.wire.reach.addresses import Addresses, split_addresses

ONE, TWO, THREE = "https://one:1", "https://two:2", "https://three:3"


def test_addresses_are_read_with_commas_and_spaces():
    assert split_addresses(f" {ONE}/ , {TWO},,") == [ONE, TWO]
    assert split_addresses("") == []


def test_one_address_is_dialled_again_after_a_while_and_never_at_once():
    site = Addresses()
    assert site.choose([ONE]) == ONE
    assert not site.miss(1)
    assert site.choose([ONE]) == ONE
    assert not site.is_plural


def test_the_next_one_is_dialled_where_nobody_answers_until_all_were():
    site = Addresses()
    seen = [site.choose([ONE, TWO])]
    while site.miss(2):
        seen.append(site.choose([ONE, TWO]))
    assert seen[:3] == [ONE, TWO, ONE]
    assert len(seen) == 6


def test_where_the_leader_is_told_to_be_is_dialled_and_left_again_when_nobody_is_there():
    site = Addresses()
    site.choose([ONE, TWO])
    assert site.tell(THREE, 2)
    assert (site.choose([ONE, TWO]), site.told) == (THREE, THREE)
    assert site.order([ONE, TWO]) == [THREE, ONE, TWO]
    site.reached()
    assert site.choose([ONE, TWO]) == THREE
    assert site.miss(2)
    assert site.choose([ONE, TWO]) == ONE


def test_a_leader_in_the_clear_beyond_this_machine_is_not_dialled():
    site = Addresses()
    site.choose([ONE, TWO])
    site.tell("http://elsewhere:7373", 2)
    assert site.choose([ONE, TWO]) == TWO
    site.tell("nonsense", 2)
    assert site.choose([ONE, TWO]) == ONE


def test_hubs_that_send_one_round_in_circles_are_asked_again_later():
    site = Addresses()
    site.choose([ONE])
    tries = 0
    while site.tell(TWO, 1):
        tries += 1
    assert tries < 10
