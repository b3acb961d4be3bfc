"""Templates as the hub keeps, lists and uses them."""
