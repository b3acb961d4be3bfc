"""Reaching a hub without taking a stranger for it."""
