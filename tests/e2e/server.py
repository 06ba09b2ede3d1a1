"""One server under test: started from the binary on free ports, with its own runtime and log folders.

A Server owns only the supervisor it starts. stop() leaves no process and no folder, however the test ends. Only
127.0.0.1 is used.
"""
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(os.environ.get("TROUPE_BINARY", ROOT / "build" / "troupe"))
DEMO_MODEL = pathlib.Path(os.environ.get("TROUPE_DEMO_MODEL", ROOT / "build" / "models" / "SmolLM2-135M-Instruct"))
DEVICE = os.environ.get("TROUPE_TEST_DEVICE", "cpu")  # of a server whose flags name none
START_SECONDS = 90  # limit for a busy machine with cold files
PATIENCE = 60  # limit in seconds for things that should happen at once; machines may be stopped for a while


def free_port():
    """A free port below the range of outgoing connections, so that none of them takes it before the server does."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def lines_of(answer):
    """The lines of a body as they come. A missing last chunk is http.client.IncompleteRead; who iterates over the answer itself
    takes it for the end."""
    rest = b""
    while piece := answer.read1(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def has_ended(pid):
    """True if the process does not exist any more or is a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] in ("Z", "X")


def children_of(pid):
    """Pids of all living descendants."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue
            parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        more = parents.get(queue.pop(), [])
        found += more
        queue += more
    return found


def wait_until(condition, what, seconds=PATIENCE):
    """Waits for a true value of condition() and returns it; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


def embedded_default():
    """The --model flag for the demo model; none if the binary finds that by itself."""
    return [] if (BINARY.parent / "models" / "SmolLM2-135M-Instruct").is_dir() else ["--model", str(DEMO_MODEL)]


def device_flags(flags):
    return [] if "--device" in flags else ["--device", DEVICE]


class Answer:
    """A complete HTTP response."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode("utf-8")

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """OpenAI's error object. AssertionError if the response is not one with all four keys."""
        document = self.json
        if set(document) != {"error"} or set(document["error"]) != {"message", "type", "param", "code"}:
            raise AssertionError(f"not an error object: {self.text[:500]}")
        return document["error"]


def leftovers(server):
    """Files in the runtime folder."""
    return [str(p) for p in server.runtime_dir.rglob("*") if not p.is_dir()]


class Server:
    tls = None  # an SSL context for its requests

    def __init__(self, *flags, model=None, port=None, home=None, wait=True, env=None, api_key=None, ca=None, launcher=()):
        """`model` None serves the demo model; `home` reuses the folders of an earlier instance; `ca`: the server speaks
        TLS, with a certificate that this file vouches for; `launcher` is put before the command line."""
        self.port = port or free_port()
        self.tls = ssl.create_default_context(cafile=ca) if ca else None
        self.url = f"{'https' if ca else 'http'}://127.0.0.1:{self.port}"
        self.api_key = api_key
        self.owns_home = home is None
        self.home = pathlib.Path(home or tempfile.mkdtemp(prefix="troupe-e2e-"))
        self.runtime_dir, self.log_dir = self.home / "run", self.home / "log"
        self.output_file = self.home / "output.txt"
        self.runtime_dir.mkdir(mode=0o700, exist_ok=True)
        self.exit_status = None
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_"))}
        self.environment |= {"XDG_RUNTIME_DIR": str(self.runtime_dir), **(env or {})}
        command = [*launcher, str(BINARY), "serve", "--port", str(self.port)]
        command += ["--model", str(model)] if model is not None else embedded_default()
        if not any(str(f).startswith("--log-dir") for f in flags):
            command += ["--log-dir", str(self.log_dir)]
        command += [*device_flags(flags), *(str(f) for f in flags)]
        if api_key:
            command += ["--api-key", api_key]
        self.started = time.monotonic()
        with open(self.output_file, "ab") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            env=self.environment, cwd=self.home)
        self.ready_after = None
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.stop(kill=True)
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self.process.pid

    @property
    def output(self):
        return self.output_file.read_text(encoding="utf-8", errors="replace") if self.output_file.exists() else ""

    # ---------------------------------------------------------------- requests

    def connect(self, timeout=60):
        if self.tls:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Sends one request on a new connection. `body`: bytes, text, or an object to be written as JSON."""
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            body = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body)
        if self.api_key and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.api_key}"
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def events(self, path, body, headers=None, timeout=60, named=False):
        """The data of each server-sent event, as text; the connection closes with the generator. `named`: events have
        a name, which is the type in their data."""
        connection = self.connect(timeout)
        try:
            headers = {"Content-Type": "application/json", **(headers or {})}
            if self.api_key:
                headers.setdefault("Authorization", f"Bearer {self.api_key}")
            connection.request("POST", path, json.dumps(body | {"stream": True}), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"HTTP {answer.status}: {answer.read(2000)!r}")
            kind = answer.headers.get("Content-Type", "")
            if not kind.startswith("text/event-stream"):
                raise AssertionError(f"a stream has content type {kind}")
            name = None
            for line in lines_of(answer):
                line = line.decode("utf-8").rstrip("\r")
                if line.startswith("data: "):
                    if named and json.loads(line[6:])["type"] != name:
                        raise AssertionError(f"the event {name!r} has the data {line!r}")
                    yield line[6:]
                elif named and line.startswith("event: "):
                    name = line[7:]
                elif line and not line.startswith(":"):
                    raise AssertionError(f"not an event: {line!r}")
        finally:
            connection.close()

    def client(self, **more):
        import openai  # half a second, which most tests do without
        if self.tls:
            more.setdefault("http_client", openai.DefaultHttpxClient(verify=self.tls))
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key or "unused",
                             **({"max_retries": 0, "timeout": 120} | more))

    def async_client(self, **more):
        import openai
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key or "unused",
                                  **({"max_retries": 0, "timeout": 120} | more))

    # ---------------------------------------------------------------- start, status, end

    def is_ready(self):
        try:
            return self.get("/health/ready", timeout=2).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait_ready(self, seconds=START_SECONDS):
        end = time.monotonic() + seconds
        while not self.is_ready():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.output[-3000:]}")
            if time.monotonic() > end:
                raise AssertionError(f"the server is not ready after {seconds} s:\n{self.output[-3000:]}")
            time.sleep(0.02)
        self.ready_after = time.monotonic() - self.started

    def command(self, *arguments, timeout=PATIENCE):
        """Runs another subcommand in the same environment: (exit status, stdout, stderr)."""
        done = subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, timeout=timeout, check=False,
                              stdin=subprocess.DEVNULL, env=self.environment, cwd=self.home)
        return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")

    def status(self):
        code, out, err = self.command("status", "--port", self.port, "--json")
        if code != 0:
            raise AssertionError(f"troupe status ended with {code}: {err or out}")
        return json.loads(out)

    def metrics(self):
        """What /metrics shows, by name and labels as written, without the label model_name, which every series has."""
        samples = {}
        for line in self.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                series, labelled = re.subn(r'model_name="(?:[^"\\]|\\.)*",?', "", series, count=1)
                assert labelled == 1, line
                samples[series.removesuffix("{}")] = float(value)
        return samples

    def process_pid(self, name):
        """Pid of the child whose name in `troupe status` starts with `name`."""
        for process in self.status()["processes"]:
            if process["name"].startswith(name):
                return process["pid"]
        raise AssertionError(f"troupe status lists no {name}")

    def free_blocks(self):
        """Blocks that no sequence holds; cached ones are given away when they are needed."""
        blocks = self.status()["kv_blocks"]
        return blocks["free"] + blocks["cached"]

    def all_blocks(self):
        """What free_blocks() is when no sequence holds any. An answer may be whole a moment before its blocks are free."""
        return self.status()["kv_blocks"]["total"]

    def terminate(self, seconds=PATIENCE):
        """Sends SIGTERM and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no exit {seconds} s after SIGTERM:\n{self.output[-3000:]}") from None

    def stop(self, kill=False):
        """Ends the server and removes its folders. Returns the exit status."""
        pids = children_of(self.pid) if self.process.poll() is None else []
        try:
            if kill and self.process.poll() is None:
                self.process.kill()
            self.exit_status = self.terminate()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for pid in pids:  # children of this server, which should have ended by now
                end = time.monotonic() + 5
                while not has_ended(pid) and time.monotonic() < end:
                    time.sleep(0.02)
                if not has_ended(pid):
                    os.kill(pid, signal.SIGKILL)
            if self.owns_home:
                shutil.rmtree(self.home, ignore_errors=True)
        return self.exit_status


def run_serve(*flags, seconds=60, port=None, env=None):
    """Runs a start that should fail: (exit status, output, whether the port was ever open)."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_"))}
        environment |= {"XDG_RUNTIME_DIR": home, **(env or {})}
        command = [str(BINARY), "serve", "--port", str(port), "--log-dir", f"{home}/log"]
        command += [*device_flags(flags), *map(str, flags)]
        if "--model" not in flags:
            command += embedded_default()
        with open(f"{home}/output.txt", "w+b") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       env=environment, cwd=home)
            opened, end = False, time.monotonic() + seconds
            try:
                while process.poll() is None:
                    if time.monotonic() > end:
                        raise AssertionError(f"no exit within {seconds} s: {' '.join(command)}")
                    with socket.socket() as probe:
                        opened = opened or probe.connect_ex(("127.0.0.1", port)) == 0
                    time.sleep(0.002)
            finally:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(PATIENCE)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
            output.seek(0)
            return process.returncode, output.read().decode("utf-8", "replace"), opened
