"""Commands that stay until something ends."""
