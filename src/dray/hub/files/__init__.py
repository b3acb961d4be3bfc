"""What a hub keeps beside its store: output of tasks, large values, the secret it signs with. One port, three kinds."""
