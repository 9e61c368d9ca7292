"""When those that wait will start: how long jobs run, and the queue replayed many times."""
