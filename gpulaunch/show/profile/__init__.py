"""A profile as words, as text and as a picture."""
