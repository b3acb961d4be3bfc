"""The life of attempts as processes."""
