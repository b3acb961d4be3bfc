"""Messages of every channel as structs, to bytes and back."""
