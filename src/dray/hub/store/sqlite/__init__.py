"""The store in one SQLite file: the log of turns is the truth, the rows are its projection."""
