"""A hub that fails on demand, on 127.0.0.1: the routes of Hugging Face, ModelScope and AI Studio's git host."""
import hashlib
import http.client
import http.server
import json
import re
import threading
import urllib.parse


def git_sum(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def pointer(content):
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(content)}\nsize {len(content)}\n".encode()


class Hub(http.server.ThreadingHTTPServer):
    """`files` maps paths to contents; those of `large` are kept outside git, as by LFS."""
    daemon_threads = True

    def __init__(self, files, large=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.large = dict(files), set(large)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.name = "org/tiny"    # of the only repository
        self.asked = []           # (path, Range or None, Authorization or None)
        self.lock = threading.Lock()
        self.token = None         # needed for every request
        self.cut_after = None     # bytes after which an answer ends, except the last ones
        self.redirect = None      # base URL of the host that has the contents
        self.ranges = True
        self.failures = 0         # answers of 503 to the next requests for contents
        self.corrupt = 0          # contents of large files that are sent with a wrong byte
        self.web_page = False     # answers every request with HTML
        self.held = None          # an Event: contents wait for it
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Clients that end in the middle of an answer are part of the tests."""

    def paths(self):
        with self.lock:
            return [path for path, _, _ in self.asked]

    def ranges_of(self, name):
        with self.lock:
            return [r for path, r, _ in self.asked if path.endswith(name) and r]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def take(self, name):
        """True if the counter `name` of the hub was above zero; takes one off."""
        with self.server.lock:
            count = getattr(self.server, name)
            setattr(self.server, name, max(0, count - 1))
            return count > 0

    def reply(self, status, body=b"", kind="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub = self.server
        with hub.lock:
            hub.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if hub.web_page:
            return self.reply(200, b"<html>Please log in</html>", "text/html; charset=utf-8")
        if hub.token and not (self.headers.get("Authorization") or "").endswith(" " + hub.token):
            return self.reply(401, b"{}")
        url = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(url.query)
        path = urllib.parse.unquote(url.path).replace(f"/{hub.name}/", "/org/tiny/")
        if re.fullmatch(r"/api/models/org/tiny/tree/main", path):
            return self.huggingface(query)
        if path == "/api/v1/models/org/tiny/repo/files":
            files = [{"Path": "sub", "Type": "tree", "Size": 0}]
            files += [{"Path": p, "Type": "blob", "Size": len(c), "Sha256": sha256(c)} for p, c in hub.files.items()]
            return self.reply(200, json.dumps({"Code": 200, "Success": True, "Data": {"Files": files}}).encode())
        if re.fullmatch(r"/api/v1/repos/org/tiny/git/trees/master", path):
            return self.git_tree()
        for pattern in (r"/org/tiny/resolve/main/(.+)", r"/api/v1/repos/org/tiny/media/(.+)", r"/cdn/(.+)"):
            if match := re.fullmatch(pattern, path):
                return self.content(match[1], path)
        if path == "/api/v1/models/org/tiny/repo":
            return self.content(query["FilePath"][0], path)
        if match := re.fullmatch(r"/api/v1/repos/org/tiny/raw/(.+)", path):
            name = match[1]
            return self.reply(200, pointer(hub.files[name]) if name in hub.large else hub.files[name], "text/plain")
        return self.reply(404, b"{}")

    def huggingface(self, query):
        """Two pages, joined by a Link header."""
        hub = self.server
        entries = [{"type": "directory", "path": "sub", "oid": "0" * 40, "size": 0}]
        for path, content in hub.files.items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": git_sum(content)}
            if path in hub.large:
                entry |= {"oid": git_sum(pointer(content)), "lfs": {"oid": sha256(content), "size": len(content)}}
            entries.append(entry)
        half = len(entries) // 2
        if "cursor" in query:
            return self.reply(200, json.dumps(entries[half:]).encode())
        return self.reply(200, json.dumps(entries[:half]).encode(),
                          Link=f'<{hub.url}/api/models/{hub.name}/tree/main?recursive=true&cursor=1>; rel="next"')

    def git_tree(self):
        hub = self.server
        page = int(urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["page"][0])
        entries = [{"path": "sub", "type": "tree", "sha": "0" * 40}]
        for path, content in hub.files.items():
            stored = pointer(content) if path in hub.large else content
            entries.append({"path": path, "type": "blob", "size": len(stored), "sha": git_sum(stored)})
        half = len(entries) // 2
        part = entries[:half] if page == 1 else entries[half:]
        return self.reply(200, json.dumps({"tree": part, "truncated": page == 1}).encode())

    def content(self, name, path):
        hub = self.server
        if name not in hub.files:
            return self.reply(404, b"{}")
        if hub.redirect and not path.startswith("/cdn/"):
            return self.reply(302, Location=f"{hub.redirect}/cdn/{urllib.parse.quote(name)}")
        if hub.held:
            hub.held.wait(30)
        if self.take("failures"):
            return self.reply(503, b"busy")
        content = hub.files[name]
        if name in hub.large and self.take("corrupt"):
            content = bytes([content[0] ^ 1]) + content[1:]
        begin, end, status, extra = 0, len(content), 200, {}
        if hub.ranges and (match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))):
            begin, end, status = int(match[1]), min(int(match[2]) + 1, len(content)), 206
            extra = {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        self.send_response(status)
        for key, value in {"Content-Type": "application/octet-stream", "Content-Length": str(end - begin), **extra}.items():
            self.send_header(key, value)
        self.end_headers()
        stop = end if hub.cut_after is None else min(end, begin + hub.cut_after)
        self.wfile.write(content[begin:stop])
        if stop < end:
            self.close_connection = True


class Proxy(http.server.ThreadingHTTPServer):
    """An HTTP proxy for which every host is the one hub. `asked` has the addresses that it was asked for."""
    daemon_threads = True

    def __init__(self, hub, credentials=None):
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.hub, self.credentials, self.asked = hub, credentials, []
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *exc):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """As in Hub."""


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.credentials and self.headers.get("Proxy-Authorization") != f"Basic {self.server.credentials}":
            return self.send_answer(407, [("Proxy-Authenticate", "Basic")], b"")
        place = urllib.parse.urlsplit(self.path)
        asked = http.client.HTTPConnection(*self.server.hub.server_address, timeout=30)
        kept = {k: v for k, v in self.headers.items() if not k.lower().startswith("proxy-")}
        asked.request(self.command, place.path + (f"?{place.query}" if place.query else ""), headers=kept)
        answer = asked.getresponse()
        body = answer.read()
        asked.close()
        near, far = self.server.hub.url, f"{place.scheme}://{place.netloc}"
        left = [(k, v.replace(near, far)) for k, v in answer.getheaders() if k.lower() not in ("content-length", "connection", "transfer-encoding")]
        return self.send_answer(answer.status, left, body)

    do_HEAD = do_GET

    def send_answer(self, status, headers, body):
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
