"""Who asks, and what they may have under way."""
