"""The Python client: submit, watch, wait and ask over one channel to a hub.

Lives on the user's side: it imports nothing of hub or agent, and nothing at import that a script would wait for.
"""
