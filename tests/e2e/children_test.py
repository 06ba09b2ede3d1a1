"""What the processes of a server hold: each has the descriptors and the environment that it needs, and no key of another."""
import http.client
import os
import pathlib
import re
import signal
import tempfile
import unittest

from server import DEMO_MODEL, PATIENCE, Server, children_of, wait_until

ECHO = ("--device", "echo")
SECRETS = {"FD_API_KEY": "sekret-env", "TROUPE_API_KEY": "sekret-second", "HF_TOKEN": "sekret-hub",
           "MODELSCOPE_API_TOKEN": "sekret-scope", "AWS_SECRET_ACCESS_KEY": "sekret-other"}
OPTIONS = {"TROUPE_MAX_NUM_SEQS": "4", "FD_LOG_LEVEL": "INFO"}
DEBUGGERS = ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LLVM_PROFILE_FILE")
NAMES = re.compile("PATH|HOME|TMPDIR|LANG|LC_.*|TZ|TZDIR|LD_LIBRARY_PATH|LD_PRELOAD|GLIBC_TUNABLES|MALLOC_.*|OPENSSL_.*|"
                   "CUDA_.*|NVIDIA_.*|NCCL_.*|NVTX_.*|NSYS_.*|GCOV_.*|.*_SYMBOLIZER_PATH|" + "|".join(DEBUGGERS))


def name_of(pid):
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return "forms" if b"--forms" in words else words[1].decode()


def descriptors(pid):
    """What each open descriptor of a process leads to."""
    out = {}
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            out[int(entry.name)] = os.readlink(entry)
        except FileNotFoundError:
            pass
    return out


def tcp_inodes(port):
    """Inodes of this machine's sockets with that local port, a listening one too."""
    inodes = set()
    for line in pathlib.Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        words = line.split()
        if int(words[1].rsplit(":", 1)[1], 16) == port and words[9] != "0":
            inodes.add(f"socket:[{words[9]}]")
    return inodes


class Children(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.NamedTemporaryFile("w", suffix=".txt")
        cls.keys.write("".join(f"sekret-file-{i}\n" for i in range(2000)))
        cls.keys.flush()
        cls.server = Server(*ECHO, "--api-key-file", cls.keys.name, "--idle-timeout", "3", api_key="sekret-flag",
                            env=SECRETS | OPTIONS)
        cls.addClassCleanup(cls.keys.close)
        cls.addClassCleanup(cls.server.stop)
        # Connected before the process for forms is started: a process that is forked inherits what is open then.
        cls.idle = [cls.server.connect() for _ in range(8)]
        for connection in cls.idle:
            connection.request("GET", "/v1/models", headers={"Authorization": "Bearer sekret-flag"})
            assert connection.getresponse().read()
        answer = cls.server.post("/v1/completions", {"prompt": "yes", "max_tokens": 2, "guided_choice": ["yes", "no"]})
        assert answer.status == 200, answer.text
        cls.children = {name_of(pid): pid for pid in children_of(cls.server.pid)}

    def test_1_all_kinds_are_there(self):
        self.assertEqual(set(self.children), {"front", "engine", "worker", "text", "forms"})

    def test_2_only_the_front_holds_connections(self):
        def held():
            connections = tcp_inodes(self.server.port)
            return connections, {name: set(descriptors(pid).values()) & connections for name, pid in self.children.items()}

        # One that is just being closed may be seen in one list and not in the other.
        wait_until(lambda: (lambda all_of, by: by["front"] == all_of)(*held()), "the front has all of them")
        connections, by = held()
        self.assertGreaterEqual(len(connections), 9)
        self.assertEqual({name: by[name] for name in by if name != "front"},
                         {"engine": set(), "worker": set(), "text": set(), "forms": set()})

    def test_3_the_process_for_forms_has_its_socket_alone(self):
        held = descriptors(self.children["forms"])
        own = {fd: to for fd, to in held.items() if fd > 2}
        self.assertEqual(len(own), 1, held)
        self.assertTrue(all(to.startswith("socket:") for to in own.values()), held)
        self.assertEqual(held[0], "/dev/null")

    def test_4_nobody_holds_what_is_the_supervisors(self):
        """Its ends of control channels, its locks, its status sockets, its log."""
        inherited = {}
        ours = descriptors(self.server.pid)
        for name, pid in self.children.items():
            shared = {to for fd, to in descriptors(pid).items() if fd > 2} & {to for fd, to in ours.items() if fd > 2}
            inherited[name] = {to for to in shared if not re.match(r"anon_inode:|/memfd:troupe-(step|cache|options|ranks)|pipe:", to)}
        listening = inherited["front"] & tcp_inodes(self.server.port)
        self.assertEqual(len(listening), 1)
        names = {to for to in inherited["engine"] if to.startswith("/memfd:troupe-names")}
        self.assertEqual(len(names), 1)
        vocabulary = {to for to in inherited["engine"] if to.startswith("/memfd:troupe-vocabulary")}
        self.assertEqual(len(vocabulary), 1)
        self.assertEqual(inherited, {"front": listening | vocabulary, "engine": names | vocabulary, "worker": set(),
                                     "text": vocabulary, "forms": set()})
        for name, pid in self.children.items():
            for to in descriptors(pid).values():
                self.assertFalse(to.startswith(str(self.server.runtime_dir)), (name, to))
                if name == "worker" and to.startswith(str(self.server.log_dir)):
                    self.assertIn("worker-0", to)

    def test_5_environments_are_lists_of_known_names(self):
        for name, pid in self.children.items():
            raw = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            with self.subTest(child=name):
                self.assertNotIn(b"sekret", raw)
                self.assertNotIn(b"sekret", line)
                for entry in filter(None, raw.split(b"\0")):
                    self.assertRegex(entry.split(b"=", 1)[0].decode(), f"^({NAMES.pattern})$")
                self.assertIn(b"PATH=" + os.environ["PATH"].encode(), raw.split(b"\0"))

    def test_6_files_of_options_hold_keys_for_the_front_alone(self):
        for name, pid in self.children.items():
            for fd, to in descriptors(pid).items():
                if not to.startswith("/memfd:troupe-options"):
                    continue
                text = pathlib.Path(f"/proc/{pid}/fd/{fd}").read_bytes()
                self.assertEqual(b"sekret" in text, name == "front", name)

    def test_7_options_of_the_environment_hold_nevertheless(self):
        self.assertEqual(self.server.get("/config-info").json["max-num-seqs"], 4)
        for key in ("sekret-flag", "sekret-file-0", "sekret-file-1999"):
            self.assertEqual(self.server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, 200)
        for key in ("sekret-env", "sekret-hub", "sekret-file-2000"):
            self.assertEqual(self.server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, 401)

    def test_8_an_idle_client_is_told_of_the_end_while_the_process_for_forms_lives(self):
        self.assertTrue(pathlib.Path(f"/proc/{self.children['forms']}").exists())
        for connection in self.idle:
            connection.sock.settimeout(PATIENCE)
            self.assertEqual(connection.sock.recv(1), b"")
            connection.close()
        wait_until(lambda: pathlib.Path(f"/proc/{self.children['forms']}").exists(), "the process for forms lives")


class Service(unittest.TestCase):
    def test_a_kubernetes_service_of_our_name(self):
        pod = {"TROUPE_PORT": "tcp://10.43.1.39:8180", "TROUPE_SERVICE_HOST": "10.43.1.39", "TROUPE_SERVICE_PORT": "8180",
               "TROUPE_SERVICE_PORT_HTTP": "8180", "TROUPE_METRICS_PORT": "tcp://10.43.1.40:9090",
               "TROUPE_PORT_8180_TCP": "tcp://10.43.1.39:8180", "TROUPE_PORT_8180_TCP_ADDR": "10.43.1.39",
               "TROUPE_PORT_8180_TCP_PORT": "8180", "TROUPE_PORT_8180_TCP_PROTO": "tcp"}
        with Server(*ECHO, env=pod) as server:
            self.assertEqual(server.output.count("ignored, since the platform sets them"), 1, server.output)
            self.assertEqual(server.output.count("warning"), 1, server.output)
            code, out, err = server.command("status", "--json")
            self.assertEqual(code, 0, err)
            self.assertIn(f'"http":{server.port},', out)
            self.assertEqual(err, "troupe status: ignored, since the platform sets them for a service of that name: TROUPE_PORT\n")
            self.assertEqual(server.command("status", "--port", server.port)[0], 0)


class Front(unittest.TestCase):
    def test_a_front_reads_no_tokenizer(self):
        """What it needs of one it gets from the supervisor: it starts although the file is gone."""
        with tempfile.TemporaryDirectory() as folder:
            for file in DEMO_MODEL.iterdir():
                (pathlib.Path(folder) / file.name).symlink_to(file.resolve())
            with Server(*ECHO, model=folder) as server:
                (pathlib.Path(folder) / "tokenizer.json").unlink()
                first = server.process_pid("front")
                os.kill(first, signal.SIGKILL)

                def answered():
                    try:
                        return server.post("/v1/completions", {"prompt": "yes and no", "max_tokens": 3}).status == 200
                    except (OSError, http.client.HTTPException):  # the one that is dying has accepted it
                        return False

                wait_until(answered, "another front")
                self.assertNotEqual(server.process_pid("front"), first)


class Keys(unittest.TestCase):
    def test_thousands_of_keys_and_their_renewal(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
            keys.write("".join(f"first-{i:058}\n" for i in range(10_000)))
            keys.flush()
            with Server(*ECHO, "--api-key-file", keys.name, api_key="k") as server:
                def status(key):
                    return server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status

                self.assertEqual([status(f"first-{i:058}") for i in (0, 9_999, 10_000)], [200, 200, 401])
                keys.seek(0)
                keys.truncate()
                keys.write("".join(f"later-{i:058}\n" for i in range(12_000)))
                keys.flush()
                server.process.send_signal(1)
                wait_until(lambda: status(f"later-{11_999:058}") == 200, "the new keys")
                self.assertEqual([status(f"first-{0:058}"), status("k")], [401, 200])
                keys.write("x" * (1 << 20))
                keys.flush()
                server.process.send_signal(1)
                wait_until(lambda: "expected at most 1 MiB" in server.output, "the refusal of more than 1 MiB")
                self.assertEqual(status(f"later-{0:058}"), 200)


if __name__ == "__main__":
    unittest.main()
