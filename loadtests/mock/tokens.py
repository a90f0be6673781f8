"""The answers that take no generation: /v1/embeddings, /tokenize, /detokenize, /v1/messages/count_tokens."""

import base64
import struct
from zlib import crc32

from loadtests.mock.request import BadRequestError, Json, Words, prompts, read_messages, token_id, whole, word_of, words

_DIMENSIONS = 8
_MAX_MODEL_LEN = 32_768


def embeddings(request: Json, model: str) -> Json:
    """A vector for each input, the same for the same words, of numbers from -1 to 1."""
    texts = prompts(request.get("input") if "input" in request else request.get("messages"))
    dimensions = whole(request, "dimensions") or _DIMENSIONS
    vectors = [_vector(text, dimensions) for text in texts]
    encoded = request.get("encoding_format") == "base64"
    tokens = sum(map(len, texts))
    return {
        "id": "embd-mock-1",
        "object": "list",
        "created": 0,
        "model": model,
        "data": [
            {"index": index, "object": "embedding", "embedding": _packed(vector) if encoded else vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }


def tokenize(request: Json, model: str) -> Json:
    text = words(request.get("messages") if "messages" in request else request.get("prompt"))
    return {
        "count": len(text),
        "max_model_len": _MAX_MODEL_LEN,
        "tokens": [token_id(word) for word in text],
        "token_strs": text if request.get("return_token_strs") else None,
    }


def detokenize(request: Json, model: str) -> Json:
    tokens = request.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise BadRequestError("tokens must be a list of integers.")
    return {"prompt": " ".join(map(word_of, tokens))}


def count_tokens(request: Json, model: str) -> Json:
    [prompt] = read_messages(request).prompts
    return {"input_tokens": len(prompt), "context_management": {"original_input_tokens": len(prompt)}}


def _vector(text: Words, dimensions: int) -> list[float]:
    joined = " ".join(text).encode("utf-8", "replace")
    return [crc32(joined, place) / 2**31 - 1 for place in range(dimensions)]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
