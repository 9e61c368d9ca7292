"""What was measured of a job -> what its profile says."""
