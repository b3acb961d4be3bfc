"""Room that is kept for somebody, or made for somebody."""
