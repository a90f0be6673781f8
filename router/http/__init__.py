"""HTTP/1.1 on asyncio's protocols and httptools: the server that clients talk to, and the client that talks to engines.

Frameworks hand each chunk through tasks, queues and futures. Here the callback that reads a chunk from an engine writes
it to the client, which is what makes a Python router as cheap as a compiled one (docs/decisions/0004-own-http.md).
"""
