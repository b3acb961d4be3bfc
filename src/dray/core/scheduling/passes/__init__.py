"""One pass over what waits, and the same pass run forward or tried out."""
