"""Starting processes, watching them, ending them."""
