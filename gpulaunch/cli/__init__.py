"""argv -> call -> print: one file a command."""
