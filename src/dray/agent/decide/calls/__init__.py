"""What an agent decides about calls: lanes, the runners that serve them, and results until they are acked."""
