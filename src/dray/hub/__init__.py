"""The hub: the shell around the core that owns the state, keeps the promises and talks to everybody."""
