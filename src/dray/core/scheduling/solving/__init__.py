"""Many waiting tasks placed together: what each would cost where, and who goes where so that all cost least."""
