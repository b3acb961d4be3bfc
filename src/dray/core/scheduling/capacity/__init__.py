"""What is left of workers, and whether it suits."""
