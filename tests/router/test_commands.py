"""The command: bad input is one clear line, and a signal lets running streams finish."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from router.commands import serve
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

PROGRAM = "import typer; from router.commands import serve; typer.run(serve)"


def test_bad_engines_are_refused() -> None:
    with pytest.raises(InputError, match="expected VARIANT=URL"):
        serve(name="m", engine=["standard"], host="127.0.0.1", port=0)


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port} .*in use.*--port"):
            serve(name="m", engine=["standard=http://127.0.0.1:1"], host="127.0.0.1", port=port)


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(InputError, match=r"no-such-host\.invalid:0"):
        serve(name="m", engine=["standard=http://127.0.0.1:1"], host="no-such-host.invalid", port=0)


def test_the_module_imports_without_the_server() -> None:
    heavy = "{'fastapi', 'aiohttp', 'uvicorn'}"
    code = f"import sys, router.commands; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_running_stream_finish(stack: Any, stop: signal.Signals) -> None:
    engine = stack.engines["standard"]
    arguments = ["--name", "acme/tiny-7b", "--engine", f"standard={engine.url}", "--port", "0"]
    router = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
    assert router.stderr is not None
    with router, router.stderr:
        try:
            line = router.stderr.readline()
            found = re.fullmatch(r"Routing acme/tiny-7b \(standard\) on http://127\.0\.0\.1:(\d+)/v1\n", line)
            assert found, line
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
            body = json.dumps({"model": "acme/tiny-7b", "messages": [], "max_tokens": 4, "stream": True})
            connection.request("POST", "/v1/chat/completions", body, {"x-mock": "hold-after=1"})
            response = connection.getresponse()
            assert b"w0" in response.readline()
            router.send_signal(stop)
            while True:
                try:
                    socket.create_connection(("127.0.0.1", int(found[1])), timeout=1).close()
                except ConnectionError:
                    break
            engine.request("POST", "/release")
            assert response.read().endswith(b"data: [DONE]\n\n")
            connection.close()
            assert router.wait(10) in (0, -stop)
            assert router.stderr.read() == ""
        finally:
            router.kill()
