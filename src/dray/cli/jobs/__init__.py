"""Commands about jobs, each beside its view."""
