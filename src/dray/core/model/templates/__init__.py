"""Templates: jobs with parameters, checked once and filled in by values."""
