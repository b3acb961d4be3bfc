"""Commands of workloads, beside their files and their views."""
