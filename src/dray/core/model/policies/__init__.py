"""What a site has decided about its queue."""
