"""What people look at: the cluster as columns, what changes in it, what was and what failed. Read, and bounded."""
