"""What is counted of workloads, kept where the counts of their jobs change; what jobs are charged of their waiting."""
