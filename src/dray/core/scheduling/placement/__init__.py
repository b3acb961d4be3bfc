"""Where a task goes among the workers that fit."""
