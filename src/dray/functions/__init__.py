"""Functions, arguments and results as bytes, for the client and the runner; hub and agent never open them."""
