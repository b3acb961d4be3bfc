"""Whose turn it is. Knows no room."""
