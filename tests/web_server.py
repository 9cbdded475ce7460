"""A web server on this machine that can do what servers on the way do: break off, refuse, lie."""

import base64
import contextlib
import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class WebServer:
    """Serves `content_by_path`.

    Attributes:
        breaks: after how many bytes each coming answer ends, one by one; None: not at all.
        statuses: that each coming answer has instead, one by one.
        has_ranges: whether it can begin in the middle.
        md5: what it says of its content; None: the truth.
    """

    content_by_path: dict[str, bytes]
    breaks: list[int | None] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    has_ranges: bool = True
    md5: str | None = None
    tag: str = '"one"'
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def __enter__(self) -> "WebServer":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def uri(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        wanted = request.headers.get("Range")
        self.asked.append((request.path, wanted))
        content = self.content_by_path.get(path)
        status = self.statuses.pop(0) if self.statuses else 404 if content is None else 200
        if content is None or status != 200:
            request.send_response(status)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start = int(wanted[6:].partition("-")[0]) if wanted and self.has_ranges else 0
        end = self.breaks.pop(0) if self.breaks else None
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.send_header("ETag", self.tag)
        right = base64.b64encode(hashlib.md5(content).digest()).decode()
        request.send_header("x-goog-hash", f"crc32c=AAAAAA==,md5={self.md5 or right}")
        request.end_headers()
        with contextlib.suppress(ConnectionError):  # who only asks for the size hangs up
            request.wfile.write(content[start:] if end is None else content[start : start + end])
        request.close_connection = True
