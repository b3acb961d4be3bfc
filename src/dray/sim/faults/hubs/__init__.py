"""Several hubs on one database."""
