"""For how long jobs have waited for what: time by reason of lines, and of jobs by the lines they stand in."""
