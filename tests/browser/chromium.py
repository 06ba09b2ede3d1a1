"""A headless Chromium, driven through its DevTools protocol with the standard library alone.

    with Chromium() as browser:
        page = browser.open("http://127.0.0.1:8180/")
        page.wait("document.title !== ''")

Its profile is a folder of its own, and only 127.0.0.1 can be reached. The page's console messages and exceptions are kept.
"""
import base64
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

PATIENCE = 60  # seconds, for a busy machine


def binary():
    """The path of Chromium, or None."""
    return os.environ.get("TROUPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class WebSocket:
    """The client's side of RFC 6455, for text messages."""

    def __init__(self, url):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self._receive()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        if b" 101 " not in head.split(b"\r\n")[0] or accept not in head:
            raise ConnectionError(f"no websocket at {url}: {head[:200]!r}")

    def _receive(self):
        part = self.socket.recv(1 << 20)
        if not part:
            raise ConnectionError("the browser has closed the connection")
        return part

    def _take(self, count):
        while len(self.rest) < count:
            self.rest += self._receive()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def send(self, text, opcode=1):
        data = text.encode() if isinstance(text, str) else text
        length = len(data)
        head = bytes([0x80 | opcode])
        if length < 126:
            head += bytes([0x80 | length])
        elif length < 1 << 16:
            head += bytes([0x80 | 126]) + struct.pack(">H", length)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", length)
        mask = os.urandom(4)
        padded = mask * (length // 4 + 1)
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(padded[:length], "big")).to_bytes(length, "big")
        self.socket.sendall(head + mask + masked)

    def receive(self, seconds):
        """The next text message; raises TimeoutError."""
        self.socket.settimeout(seconds)
        message = b""
        while True:
            first, second = self._take(2)
            length = second & 127
            if length == 126:
                length, = struct.unpack(">H", self._take(2))
            elif length == 127:
                length, = struct.unpack(">Q", self._take(8))
            data = self._take(length)
            opcode = first & 15
            if opcode == 8:
                raise ConnectionError("the browser has closed the connection")
            if opcode == 9:
                self.send(data, opcode=10)
            elif opcode in (0, 1):
                message += data
                if first & 0x80:
                    return message.decode()


class Page:
    """One tab."""

    def __init__(self, url):
        self.socket = WebSocket(url)
        self.last_id = 0
        self.problems = []  # uncaught exceptions, and what the browser itself logs as errors
        self.dialogs = []   # texts of confirm(); they are accepted
        self.sent = []      # (request id, method, URL) of every request, for body_of
        self.choosers = []  # what the browser says of each file chooser that it would have shown
        self.traced = []    # the events of the last trace
        self.tracing = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.last_id += 1
        own = self.last_id
        self.socket.send(json.dumps({"id": own, "method": method, "params": parameters}))
        end = time.monotonic() + PATIENCE
        while True:
            message = json.loads(self.socket.receive(max(0.1, end - time.monotonic())))
            if message.get("id") == own:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._event(message)

    def _event(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.sent.append((parameters["requestId"], parameters["request"]["method"], parameters["request"]["url"]))
        elif method == "Page.fileChooserOpened":
            self.choosers.append(parameters)
        elif method == "Tracing.dataCollected":
            self.traced += parameters["value"]
        elif method == "Tracing.tracingComplete":
            self.tracing = False
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
            self.last_id += 1
            self.socket.send(json.dumps({"id": self.last_id, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}))

    def eval(self, expression):
        """The value of an expression or promise in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def wait(self, condition, seconds=PATIENCE):
        """Waits until an expression is true; returns its value. It is asked for twenty times a second at most."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.eval(condition)
                if value not in (None, False, 0, ""):  # an element arrives as {}
                    return value
            except RuntimeError as problem:  # the page is being replaced
                if time.monotonic() > end:
                    raise
                last = problem
            else:
                last = None
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {seconds} s: {condition} ({last}); {self.problems}")
            time.sleep(0.05)

    def goto(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def reload(self):
        self.eval("window.beforeReload = true")
        self.call("Page.reload")
        self.wait("!window.beforeReload && document.readyState === 'complete'")

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def type(self, text):
        """Into what has the focus, as if pasted."""
        self.call("Input.insertText", text=text)

    def press(self, key, code=0, text="", modifiers=0):
        """A key by its name, such as Enter with code 13 and text "\\r"."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      text=text if kind == "keyDown" else "", modifiers=modifiers)

    def enter(self):
        self.press("Enter", 13, "\r")

    def tab(self):
        self.press("Tab", 9)

    def click(self, element):
        """With the mouse, in the middle of what the expression names: as a person's hand, without which a page may neither open a
        file chooser nor copy."""
        box = self.eval(f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); "
                        "const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box["x"], y=box["y"], button="left", clickCount=1)

    def choose_files(self, element, paths):
        """Clicks what opens a file chooser, and answers that with files."""
        self.call("Page.setInterceptFileChooserDialog", enabled=True)
        self.click(element)
        end = time.monotonic() + PATIENCE
        while not self.choosers:
            if time.monotonic() > end:
                raise TimeoutError(f"{element} opens no file chooser")
            self.eval("new Promise((done) => setTimeout(done, 20))")
        self.call("DOM.setFileInputFiles", files=[str(p) for p in paths], backendNodeId=self.choosers.pop()["backendNodeId"])

    def drop_files(self, element, paths):
        """Files dragged from outside the browser over the element and let go there."""
        box = self.eval(f"(() => {{ const r = {element}.getBoundingClientRect(); "
                        "return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()")
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=box["x"], y=box["y"],
                      data={"items": [], "files": [str(p) for p in paths], "dragOperationsMask": 1})

    def paste(self):
        """What lies in the clipboard, as with Ctrl+V."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key="v", code="KeyV", windowsVirtualKeyCode=86, modifiers=2, commands=["paste"])
        self.call("Input.dispatchKeyEvent", type="keyUp", key="v", code="KeyV", windowsVirtualKeyCode=86, modifiers=2)

    def body_of(self, path):
        """The JSON body of the last POST to this path."""
        request = [identity for identity, method, url in self.sent if method == "POST" and url.endswith(path)][-1]
        return json.loads(self.call("Network.getRequestPostData", requestId=request)["postData"])

    def trace(self, work, *categories):
        """The events of these categories, as the browser writes them down for its own developers, while work() runs."""
        self.traced, self.tracing = [], True
        self.call("Tracing.start", transferMode="ReportEvents", traceConfig={"includedCategories": categories})
        work()
        self.call("Tracing.end")
        end = time.monotonic() + PATIENCE
        while self.tracing:
            if time.monotonic() > end:
                raise TimeoutError("the trace does not end")
            self.eval("new Promise((done) => setTimeout(done, 20))")
        return self.traced

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


class Chromium:
    """One browser process with its children, ended with the object."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="troupe-chromium-", ignore_cleanup_errors=True)
        # The window holds the pages whole: a page that is larger has parts that are never on a screen, so nothing waits for their paint.
        command = [binary(), "--headless=new", "--window-size=1200,1000", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0",
                   "--remote-allow-origins=*", f"--user-data-dir={self.profile.name}", "about:blank"]
        # A session of its own, so that its helpers end with it.
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        port_file = pathlib.Path(self.profile.name, "DevToolsActivePort")
        end = time.monotonic() + PATIENCE
        while not (port_file.exists() and port_file.read_text().count("\n")):
            if time.monotonic() > end or self.process.poll() is not None:
                self.close()
                raise TimeoutError("Chromium did not start")
            time.sleep(0.05)
        self.port = int(port_file.read_text().split("\n")[0])

    def open(self, url="about:blank"):
        ask = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(ask, timeout=PATIENCE) as answer:
            page = Page(json.load(answer)["webSocketDebuggerUrl"])
        page.goto(url)
        return page

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
