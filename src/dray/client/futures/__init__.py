"""Results to come, and waiting for them."""
