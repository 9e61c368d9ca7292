"""What a profile's file may say, and how several files make one profile."""
