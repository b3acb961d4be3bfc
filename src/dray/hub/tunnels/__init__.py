"""What is behind workers, reached through the hub: their tunnels, who answers for a service, and forwards to it."""
