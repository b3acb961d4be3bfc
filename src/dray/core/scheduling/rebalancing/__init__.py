"""Which work that runs would be better off elsewhere, and whether moving it pays."""
