"""The fully pinned requirement files, one per environment, shipped as package data."""
