"""What an agent decides. Pure: messages and events in, messages and requests out."""
