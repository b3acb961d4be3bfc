"""How good the decisions are: published experiments repeated with the product's own core, beside their figures.

    python -m benchmarks.quality --traces DIR

Traces are read from a directory given on the command line; they are no part of the project.
"""
