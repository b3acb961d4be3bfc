"""What people write of workloads: checked, and laid under their jobs."""
