"""What happens to jobs, attempts and workers: events in, effects out, state in between."""
