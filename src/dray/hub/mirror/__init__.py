"""The live view in Redis: what waits and what runs, written for other programs to read; never the truth."""
