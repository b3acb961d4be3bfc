"""Which workers a site should start for what waits, and which of them may go again."""
