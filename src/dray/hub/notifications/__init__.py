"""Telling people and programs what happened: who is told, the record of it, and the three ways it goes out."""
