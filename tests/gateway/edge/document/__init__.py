"""Settings and hooks of schemathesis."""
