"""The client channel: many requests in flight on one socket."""
