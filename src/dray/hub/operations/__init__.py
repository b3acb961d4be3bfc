"""What the hub can be asked, one row each: every way in is made from this table."""
