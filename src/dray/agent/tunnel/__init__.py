"""What is reached on this machine through the hub: the tunnel to it, and the ends of streams."""
