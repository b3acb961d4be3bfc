"""The nouns of dray as plain values: ids, units, specs, asks, jobs, tasks, attempts, workers."""
