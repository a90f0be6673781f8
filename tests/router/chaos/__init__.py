"""A storm of faults around the router's command, and what has to be true of it in the end."""
