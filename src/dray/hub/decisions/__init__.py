"""What may be changed and by whom, settled inside a turn."""
