"""What is answered about workloads."""
