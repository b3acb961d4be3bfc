"""Warm processes that run calls."""
