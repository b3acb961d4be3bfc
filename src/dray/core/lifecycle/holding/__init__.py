"""Attempts and what they hold: phases, accounts, lanes, receipts."""
