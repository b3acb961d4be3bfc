"""Records as the documents that people and programs read. Pure."""
