"""joblib over dray."""

from __future__ import annotations

import math

import joblib
import numpy as np
import pytest

import dray
import dray.joblib


def test_a_parallel_run(hub: dray.Hub) -> None:
    with joblib.parallel_config("dray", hub=hub):
        assert joblib.Parallel()(joblib.delayed(math.sqrt)(n * n) for n in range(200)) == list(range(200))


def test_jobs_arrays_and_exceptions(hub: dray.Hub) -> None:
    with joblib.parallel_config("dray", hub=hub, n_jobs=2):
        big = np.arange(200_000.0)
        sums = joblib.Parallel()(joblib.delayed(np.sum)(big + n) for n in range(4))
        assert sums == [float(np.sum(big + n)) for n in range(4)]
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(divmod)(1, n) for n in (1, 0, 2))
        assert joblib.Parallel()(joblib.delayed(pow)(n, 2) for n in range(5)) == [0, 1, 4, 9, 16]


def test_results_as_a_generator(hub: dray.Hub) -> None:
    with joblib.parallel_config("dray", hub=hub):
        run = joblib.Parallel(return_as="generator")(joblib.delayed(abs)(-n) for n in range(20))
        assert list(run) == list(range(20))
