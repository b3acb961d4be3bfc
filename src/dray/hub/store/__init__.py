"""Where the hub keeps what it promised: a log that is the truth, rows that are its projection."""
