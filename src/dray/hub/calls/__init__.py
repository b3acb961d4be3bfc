"""Values of calls: arguments on their way out, results on their way back, and the large ones as files."""
