"""Programs that work for people, over the Model Context Protocol."""
