"""What tasks find around them, and how they are heard."""
