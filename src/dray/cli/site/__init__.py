"""Commands about the site's rules."""
