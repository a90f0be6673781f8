"""Number formats: recipes that write a variant's weights, and the release they go into."""
