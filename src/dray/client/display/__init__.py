"""How handles look in a notebook: documents as HTML, and pictures that are kept up to date."""
