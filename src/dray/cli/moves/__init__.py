"""Commands that move work that runs, and tell how far it is."""
