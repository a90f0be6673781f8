"""What one sees of the router: metrics, access log and traces, from one record for each request."""

from router.observe.observer import Observer

__all__ = ["Observer"]
