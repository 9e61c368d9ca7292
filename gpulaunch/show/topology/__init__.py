"""A machine as text, as a picture and as JSON."""
