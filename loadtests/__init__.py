"""Load on the router, and a stand-in for the engines behind it."""
