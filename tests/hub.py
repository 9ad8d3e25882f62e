"""A stand-in for the Hugging Face hub on the loopback, for tests of the real loading code. Standard library only.

It answers what huggingface_hub 2.4, transformers 5.23 and datasets 5.2 ask: repository info, trees, resolve with ranges,
redirects of large files to another origin, gated and unknown repositories as the client's errors expect them.
Clients read HF_ENDPOINT when they are imported, so they run in a subprocess: `run([...], env=hub.env(home))`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

LARGE = (".safetensors", ".parquet", ".bin")


@dataclass(frozen=True)
class Entry:
    """A file of a repository, as the hub lists it."""

    path: Path
    name: str

    @cached_property
    def data(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def blob(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @cached_property
    def tag(self) -> str:
        return hashlib.sha256(self.data).hexdigest() if self.name.endswith(LARGE) else self.blob

    def listed(self) -> dict[str, Any]:
        entry = {"type": "file", "oid": self.blob, "size": len(self.data), "path": self.name}
        large = {"oid": self.tag, "size": len(self.data), "pointerSize": 130}
        return entry | ({"lfs": large} if self.name.endswith(LARGE) else {})


@dataclass(frozen=True)
class Repo:
    """A folder; its commit is a hash of names and contents."""

    id: str
    folder: Path

    @cached_property
    def files(self) -> dict[str, Entry]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {name: Entry(path, name) for path in paths if (name := path.relative_to(self.folder).as_posix())}

    @cached_property
    def commit(self) -> str:
        return hashlib.sha1(
            "\n".join([self.id, *(f"{e.name} {e.blob}" for e in self.files.values())]).encode()
        ).hexdigest()

    def tree(self, below: str, *, is_recursive: bool) -> list[dict[str, Any]] | None:
        prefix = f"{below.strip('/')}/" if below.strip("/") else ""
        entries, folders = [], set()
        for name, entry in self.files.items():
            if name.startswith(prefix):
                parts = name.removeprefix(prefix).split("/")
                depth = len(parts) if is_recursive else min(2, len(parts))
                folders |= {prefix + "/".join(parts[:i]) for i in range(1, depth)}
                entries += [entry.listed()] if is_recursive or len(parts) == 1 else []
        entries += [
            {"type": "directory", "oid": hashlib.sha1(f.encode()).hexdigest(), "size": 0, "path": f} for f in folders
        ]
        return sorted(entries, key=lambda entry: entry["path"]) if entries or not prefix else None


@dataclass
class Hub:
    """Serves root/models/ORG/NAME and root/datasets/ORG/NAME; `tokens` says which gated ids each token may read."""

    root: Path
    gated: frozenset[str] = frozenset()
    tokens: dict[str, set[str]] = field(default_factory=dict)
    fail: Callable[[str, str, int], int | None] | None = (
        None  # (method, path, how often asked) -> status to give instead
    )
    log: list[str] = field(default_factory=list)  # "GET /path 200"
    servers: list[ThreadingHTTPServer] = field(default_factory=list)
    repos: dict[Path, Repo] = field(default_factory=dict)

    def start(self) -> Hub:
        handler = type("Handler", (_Handler,), {"hub": self})
        # Large files come from another origin: a redirect within the hub's own is followed by HEAD and loses the commit.
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].server_address[1]}"

    @property
    def store(self) -> str:
        return f"http://127.0.0.1:{self.servers[1].server_address[1]}"

    def repo(self, kind: str, id: str) -> Repo | None:
        folder = self.root / kind / id
        if id.count("/") != 1 or ".." in id or not folder.is_dir():
            return None
        return self.repos.setdefault(folder, Repo(id, folder))

    def env(self, home: Path, token: str | None = None, **more: str) -> dict[str, str]:
        """A subprocess's whole environment: this hub, a cache of its own, no proxy, no token but the one given."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING")) and "proxy" not in k.lower()}
        env |= {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        env |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        return env | ({"HF_TOKEN": token} if token else {}) | more


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        count = 1 + sum(line.split()[1] == path for line in hub.log)
        if hub.fail and (status := hub.fail(self.command, path, count)):
            return self._send(status, {"error": "injected"}, {"Retry-After": "0"} if status == 429 else {})
        if path.startswith("/store/"):
            kind, id, name = re.fullmatch(r"/store/(\w+)/([^/]+/[^/]+)/@/(.+)", path).groups()  # type: ignore[union-attr]
            return self._file(hub.repo(kind, id).files[name], {})  # type: ignore[union-attr]
        if self._token() is not None and self._token() not in hub.tokens:
            return self._error(401, "", "Invalid credentials in Authorization header")
        if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)/?(.*))?", path):
            return self._api(*match.groups(""))
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve("datasets" if match[1] else "models", match[2], match[3], match[4])
        return self._send(404, {"error": "Not Found"})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _api(self, kind: str, id: str, verb: str, revision: str, below: str) -> None:
        repo = self._find(kind, id, revision or "main")
        if repo is None:
            return None
        if verb == "tree":
            tree = repo.tree(below, is_recursive="recursive=true" in self.path.lower())
            return (
                self._error(404, "EntryNotFound", f"{below} does not exist") if tree is None else self._send(200, tree)
            )
        times = {"lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z"}
        files = [{"rfilename": name, "size": len(entry.data)} for name, entry in repo.files.items()]
        gated = "manual" if id in self.hub.gated else False
        info = {
            "_id": "0" * 24,
            "id": id,
            "sha": repo.commit,
            "private": False,
            "gated": gated,
            "tags": [],
            "downloads": 0,
        }
        return self._send(200, {**info, **times, "modelId": id, "likes": 0, "siblings": files})

    def _find(self, kind: str, id: str, revision: str) -> Repo | None:
        repo = self.hub.repo(kind, id)
        if repo is None:
            status = 404 if self._token() else 401
            self._error(
                status, "RepoNotFound", "Repository not found" if status == 404 else "Invalid username or password."
            )
        elif revision not in ("main", repo.commit):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repo
        return None

    def _resolve(self, kind: str, id: str, revision: str, name: str) -> None:
        repo = self._find(kind, id, revision)
        if repo is None:
            return None
        token, commit = self._token(), {"X-Repo-Commit": repo.commit}
        if id in self.hub.gated and id not in self.hub.tokens.get(token or "", set()):
            words = f"Access to model {id} is restricted" + (
                "." if token is None else " and you are not in the authorized list."
            )
            return self._error(403 if token else 401, "GatedRepo", words)
        if name not in repo.files:
            return self._error(404, "EntryNotFound", "Entry not found", commit)
        entry = repo.files[name]
        if not name.endswith(LARGE):
            return self._file(entry, commit)
        linked = {"X-Linked-Etag": f'"{entry.tag}"', "X-Linked-Size": str(len(entry.data))}
        where = f"{self.hub.store}/store/{kind}/{quote(id)}/@/{quote(name)}"
        return self._send(302, b"", commit | linked | {"Location": where, "Accept-Ranges": "bytes"})

    def _file(self, entry: Entry, headers: dict[str, str]) -> None:
        data, status = entry.data, 200
        headers = headers | {"ETag": f'"{entry.tag}"', "Accept-Ranges": "bytes"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2] or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        self._send(status, data, headers)

    def _token(self) -> str | None:
        words = self.headers.get("Authorization", "")
        return words.removeprefix("Bearer ") if words.startswith("Bearer ") else None

    def _error(self, status: int, code: str, words: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, {"error": words}, {"X-Error-Code": code, "X-Error-Message": words} | (headers or {}))

    def _send(self, status: int, body: Any = b"", headers: dict[str, str] | None = None) -> None:
        self.hub.log.append(f"{self.command} {unquote(urlsplit(self.path).path)} {status}")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
