"""Hub, workers and their processes in a simulated world."""
