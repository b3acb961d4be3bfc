"""Version 1 of the gRPC services: protos, the stubs made of them, and nothing written by hand."""
