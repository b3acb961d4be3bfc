"""What a job asks for, as written and as checked."""
