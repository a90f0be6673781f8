"""An engine's outside without an engine: `fake_engine.py PORT STATE_FOLDER [--child] [--slow-stop] [--fail TEXT]`.

Appends its pid to STATE_FOLDER/starts, answers GET /health with 200, and writes STATE_FOLDER/drained on SIGTERM.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("state", type=Path)
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--slow-stop", action="store_true")
    parser.add_argument("--fail")
    arguments = parser.parse_args()

    def drain(number: int, frame: FrameType | None) -> None:
        (arguments.state / "drained").touch()
        if arguments.slow_stop:
            time.sleep(300)
        sys.exit(0)

    signal.signal(signal.SIGTERM, drain)
    with (arguments.state / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if arguments.fail:
        print(arguments.fail, flush=True)
        sys.exit(1)
    if arguments.child:
        # Holds our standard output open, as an engine's worker processes do.
        orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        (arguments.state / "child").write_text(str(orphan.pid))
    print("(EngineCore pid=7) INFO 11-30 23:10:01 [core.py:402] init engine took 56.93 s", flush=True)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Health).serve_forever()


main()
