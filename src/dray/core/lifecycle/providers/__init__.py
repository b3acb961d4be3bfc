"""Where workers come from: what that costs, how well it goes there, and whether it goes badly now."""
