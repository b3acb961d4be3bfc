"""Functions on their way to the hub, and their results on the way back."""
