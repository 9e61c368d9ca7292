"""What ran: one line for each launch, in files that its user owns."""
