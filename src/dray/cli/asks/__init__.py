"""From what people write to the fields of a spec."""
