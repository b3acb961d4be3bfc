"""What must hold of what programs drive dray by: workloads and leases."""
