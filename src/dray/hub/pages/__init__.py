"""The dashboard on the hub's side: its files as they are served, and how a browser signs in."""
