"""Jobs and their tasks: queued, placed, ended, queued again."""
