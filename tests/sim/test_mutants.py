"""A check that cannot fail is no check: deliberate bugs are caught, and every entry of their table still applies."""

from __future__ import annotations

import pytest

from dray.sim.faults.mutants.mutants import Edit, Mutant, applied, find_function
from dray.sim.faults.mutants.shy import SHOWN_BY
from dray.sim.faults.mutants.table import MUTANTS
from dray.sim.faults.shrinking import shrink
from dray.sim.faults.soaking import hunt, judge, shrink_seed

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
# How many worlds are looked at when the one that is kept for a bug has become another history.
FEW = 60


@pytest.mark.parametrize("name", SHOWN_BY)
def test_a_planted_bug_is_caught(name):
    assert hunt(BY_NAME[name], 0, FEW), (
        f"neither the seed that is kept for {name} nor the first {FEW} show it ({BY_NAME[name].sentence}): where they "
        f"have become other histories, ./dev soak --mutants {name} --renew finds one that does, and keeps it"
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_a_bug_can_be_planted_and_leaves_nothing_behind(name):
    functions = [find_function(edit.where) for edit in BY_NAME[name].edits]
    before = [function.__code__ for function in functions]
    with applied(BY_NAME[name]):
        assert all(function.__code__ is not code for function, code in zip(functions, before, strict=True))
    assert [function.__code__ for function in functions] == before


def test_names_and_sentences_are_there():
    assert len(BY_NAME) == len(MUTANTS) >= 30
    assert all(mutant.sentence.endswith(".") for mutant in MUTANTS)


def test_an_edit_that_fits_nothing_is_an_error():
    stray = Mutant(
        "stray", "Edits what is not there.", (Edit(MUTANTS[0].edits[0].where, "no such text", ""),)
    )
    with pytest.raises(ValueError, match="0 times, not once"), applied(stray):
        pass


def test_shrinking_finds_the_two_faults_that_matter():
    skipped = shrink(list(range(60)), lambda out: not {17, 43} & out)
    assert set(range(60)) - skipped == {17, 43}


def test_a_failing_seed_shrinks_to_one_that_still_fails():
    verdict = hunt(BY_NAME["unaccepted-lost"], 0, 12)
    assert verdict is not None
    with applied(BY_NAME["unaccepted-lost"]):
        scenario = shrink_seed(verdict.seed, "small", tries=16)
        assert scenario.skipped
        assert judge(scenario.seed, "small", scenario.skipped).problem == scenario.problem
