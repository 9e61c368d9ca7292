"""A profile in rows of words, as text and as a picture."""
