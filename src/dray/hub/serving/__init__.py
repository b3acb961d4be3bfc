"""Services: found by their names, shown with their replicas, scaled, restarted and stopped."""
