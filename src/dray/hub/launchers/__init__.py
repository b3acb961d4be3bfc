"""Launchers: what starts and ends workers through what a site already has."""
