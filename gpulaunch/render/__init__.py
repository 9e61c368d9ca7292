"""Values -> terminal tables and JSON documents."""
