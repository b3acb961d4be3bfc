"""The runner: a warm interpreter that runs the user's functions, one call after the other.

The one place on a worker where pickles are opened. It needs the standard library, cloudpickle and `dray.functions`, and
may live in an environment that has nothing else of dray.
"""
