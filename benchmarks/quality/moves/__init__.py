"""What moves of running work are worth, each replayed through the product's own core."""
