"""A Hugging Face hub on this machine: as much of its protocol as its own library asks for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLD_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


class FakeHub:
    """Serves repositories until it is closed, and remembers what was asked of it."""

    def __init__(self, repositories: Mapping[str, Path]) -> None:
        self.repositories = repositories
        self.revisions = {"main": COMMIT, "v1": OLD_COMMIT}
        self.gated: set[str] = set()
        """Repositories whose files nobody may have."""
        self.broken: set[str] = set()
        """Names of files whose bytes end midway."""
        self.status: int | None = None
        """What every request is answered with, whatever it asks for."""
        self.stalled = threading.Event()
        """Set when a file in `stalls` has been begun; its bytes go on when the hub closes."""
        self.stalls: set[str] = set()
        self.fetched: list[str] = []
        """Names of the files whose bytes were asked for."""
        self.closing = threading.Event()
        outer = self

        class Handler(_Handler):
            hub = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def fake_hub(repositories: Mapping[str, Path]) -> Iterator[FakeHub]:
    hub = FakeHub(repositories)
    try:
        yield hub
    finally:
        if not hub.closing.is_set():
            hub.close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.hub.status is not None:
            self._refuse(self.hub.status)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            repository, what, revision = found.groups()
            self._list(repository, what or "revision", revision or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(*found.groups(), with_body=with_body)
        else:
            self._refuse(404, "EntryNotFound")

    def _commit(self, repository: str, revision: str) -> str | None:
        """None where the request has been refused."""
        if repository not in self.hub.repositories:
            self._refuse(401, "RepoNotFound")
            return None
        commit = self.hub.revisions.get(revision, revision)
        if commit not in self.hub.revisions.values():
            self._refuse(404, "RevisionNotFound")
            return None
        return commit

    def _list(self, repository: str, what: str, revision: str) -> None:
        commit = self._commit(repository, revision)
        if commit is None:
            return
        root = self.hub.repositories[repository]
        files = {str(f.relative_to(root)): f for f in sorted(root.rglob("*")) if f.is_file()}
        if what == "revision":
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": repository, "sha": commit, "siblings": siblings})
        else:
            self._json(
                [
                    {
                        "type": "file",
                        "path": name,
                        "size": file.stat().st_size,
                        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                    }
                    for name, file in files.items()
                ]
            )

    def _file(self, repository: str, revision: str, name: str, *, with_body: bool) -> None:
        commit = self._commit(repository, revision)
        if commit is None:
            return
        if repository in self.hub.gated:
            self._refuse(403, "GatedRepo")
            return
        content = (self.hub.repositories[repository] / name).read_bytes()
        first = 0
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            first = int(found[1])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if with_body:
            self.hub.fetched.append(name)
            self._send(name, content[first:])

    def _send(self, name: str, content: bytes) -> None:
        if name not in self.hub.stalls | self.hub.broken:
            self.wfile.write(content)
            return
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        if name in self.hub.stalls:
            self.hub.stalled.set()
            self.hub.closing.wait()
        self.close_connection = True

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "not for you")
        self.send_header("Content-Length", "0")
        self.end_headers()
