"""OpenAI's files and batches: JSON lines in, JSON lines out, through restarts and crashes."""

from router.batches.lines import InputLimits
from router.batches.routes import create_routes
from router.batches.run import Submit
from router.batches.runner import BatchRunner
from router.batches.service import BatchService
from router.batches.store import BatchStore

__all__ = ["BatchRunner", "BatchService", "BatchStore", "InputLimits", "Submit", "create_routes"]
