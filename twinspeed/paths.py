"""Where Twinspeed keeps what clones share: environments, fetched checkpoints, compile caches, hashes."""

import os
from pathlib import Path


def home() -> Path:
    """`TWINSPEED_HOME`, or `twinspeed` in the user's cache folder. Not created here."""
    configured = os.environ.get("TWINSPEED_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache).expanduser().absolute() / "twinspeed"


def environments() -> Path:
    return home() / "environments"


def checkpoints() -> Path:
    return home() / "checkpoints"


def engine_cache() -> Path:
    """vLLM's compile cache; kept so that the second start of an engine is warm."""
    return home() / "engine-cache"


def locks() -> Path:
    return home() / "locks"


def hashes() -> Path:
    return home() / "hashes"
