"""The hub over gRPC: one table of methods in front of the table of operations, on a port of its own."""
