"""Who gets what: filters, order, placement, and the answer to "why not"."""
