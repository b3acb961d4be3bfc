"""What programs import: hubs, jobs, executors, tasks."""
