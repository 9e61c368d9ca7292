"""Docker behind the protocol of container engines: its flags, its sockets, its API."""
