"""API keys and what each may use: rates, concurrency and budgets, kept in process, in SQLite, Redis or Postgres."""

from router.limits.keys import Key, KeySettings
from router.limits.results import KeyUsage, Refusal, RefusalCode, Reservation
from router.limits.store import Store, StoreUnavailable
from router.limits.urls import open_store

__all__ = [
    "Key",
    "KeySettings",
    "KeyUsage",
    "Refusal",
    "RefusalCode",
    "Reservation",
    "Store",
    "StoreUnavailable",
    "open_store",
]
