"""One turn after another: what comes in, what is decided, what is committed, what may leave."""
