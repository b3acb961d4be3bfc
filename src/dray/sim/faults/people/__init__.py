"""Who submits, calls, steers and changes the policy."""
