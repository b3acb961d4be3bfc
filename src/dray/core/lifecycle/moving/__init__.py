"""Work that is moved for its own sake, as wholes."""
