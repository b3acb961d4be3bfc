"""Moves of work that runs: ordered by people, what is answered about them."""
