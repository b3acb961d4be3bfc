"""What happens to them: cancels, edits, workers that come and go."""
