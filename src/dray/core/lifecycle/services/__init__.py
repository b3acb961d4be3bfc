"""Services as wholes: how many replicas they have, updates, and moves off workers that are drained."""
