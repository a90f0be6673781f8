"""The gateway: one OpenAI-compatible endpoint in front of the engines of every variant."""
