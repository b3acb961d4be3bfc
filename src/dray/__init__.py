"""dray: hauls machine-learning work to the machine that can carry it."""

__version__ = "0.1.0"
