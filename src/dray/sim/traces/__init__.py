"""Traces replayed in virtual time by the very core that a hub runs: what a policy would have made of a workload."""
