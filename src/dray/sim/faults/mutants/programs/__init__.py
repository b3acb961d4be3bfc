"""Bugs in what programs drive dray by: workloads and leases."""
