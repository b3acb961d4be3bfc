"""What must hold, looked at from outside."""
