"""How fast dray is, each figure beside a floor or a peer that was measured in the same run.

`python -m benchmarks [names] [--quick]` runs them; results lie in `results/`, one JSON document per benchmark and one
table made of them all.
"""
