"""Evidence: speed, cost and quality of a release's variants, measured on the served endpoints."""
