"""Files that people write: reading, checking and writing them; sizes and durations."""
