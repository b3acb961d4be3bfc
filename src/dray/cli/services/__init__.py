"""Services: `serve`, and the commands under `service` with their views."""
