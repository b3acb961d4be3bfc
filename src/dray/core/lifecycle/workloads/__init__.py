"""Workloads as wholes: made, changed, switched, out of money."""
