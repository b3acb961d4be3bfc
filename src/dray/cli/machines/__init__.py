"""Commands about workers, tokens and the hub itself."""
