"""A launch: settings, request, lease, job, release."""
