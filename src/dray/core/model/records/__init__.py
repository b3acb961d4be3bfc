"""Jobs, tasks, attempts and workers as the hub holds them."""
