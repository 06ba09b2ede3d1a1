"""TLS: real clients, our own ones, bad certificates, reloading by SIGHUP."""
import os
import pathlib
import signal
import socket
import ssl
import tempfile
import unittest

import openai

from certificates import make_certificate
from server import PATIENCE, Server, run_serve, wait_until

CHAT = {"model": "default", "messages": [{"role": "user", "content": "one two three four"}], "max_tokens": 4}


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="troupe-tls-")
        cls.home = pathlib.Path(cls.folder.name)
        cls.certificate, cls.key = make_certificate(cls.home)
        cls.keys = cls.home / "keys"
        cls.keys.write_text("first\n", encoding="ascii")
        # setsid: without a controlling terminal, so that SIGHUP reads the files again.
        cls.server = Server("--device", "echo", "--ssl-certfile", cls.certificate, "--ssl-keyfile", cls.key,
                            "--api-key-file", cls.keys, "--header-timeout", "1", ca=cls.certificate, launcher=["setsid"])
        cls.server.api_key = "first"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def handshake(self, cafile=None, **settings):
        """A connection with TLS settings of its own; the caller closes it."""
        context = ssl.create_default_context(cafile=cafile or self.certificate)
        for name, value in settings.items():
            if name == "alpn":
                context.set_alpn_protocols(value)
            else:
                setattr(context, name, value)
        return context.wrap_socket(socket.create_connection(("127.0.0.1", self.server.port), PATIENCE),
                                   server_hostname="localhost")

    def test_openai_client(self):
        with self.server.client() as client:
            whole = client.chat.completions.create(**CHAT)
            self.assertTrue(whole.choices[0].message.content)
            chunks = list(client.chat.completions.create(**CHAT, stream=True))
            self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
                             whole.choices[0].message.content)
            long = client.completions.create(model="default", prompt="word " * 3000, max_tokens=3000)  # many TLS records
            self.assertEqual(long.usage.completion_tokens, 3000)
            with self.assertRaises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()
        self.assertIn("https://127.0.0.1", self.server.output)

    def test_protocols(self):
        with self.handshake(alpn=["h2", "http/1.1"]) as new:
            self.assertEqual((new.version(), new.selected_alpn_protocol()), ("TLSv1.3", "http/1.1"))
        with self.handshake(maximum_version=ssl.TLSVersion.TLSv1_2) as old:
            self.assertEqual(old.version(), "TLSv1.2")
            self.assertTrue(old.cipher()[0].startswith("ECDHE"), old.cipher())
            old.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: old.recv(4096), b""))  # a clean end, or recv() raises
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)
        with self.assertRaises(ssl.SSLError):
            self.handshake(alpn=["h2"]).close()

    def test_a_client_without_tls_is_told(self):
        with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = b"".join(iter(lambda: plain.recv(4096), b""))
        self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
        self.assertIn(b"https://", answer)

    def test_a_handshake_has_a_deadline(self):
        with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE) as silent:
            self.assertEqual(silent.recv(1), b"")  # --header-timeout 1

    def test_our_clients(self):
        flags = ["--url", self.server.url, "--ca-file", str(self.certificate), "--api-key", "first"]
        code, out, err = self.server.command("chat", "one two three", "--max-tokens", "4", *flags)
        self.assertEqual((code, err), (0, "[cut: the limit of tokens was reached]\n"))
        self.assertTrue(out.strip())
        load = ["--requests", "4", "--concurrency", "2", "--input", "16", "--output", "8"]
        code, out, err = self.server.command("bench", "load", *load, *flags)
        self.assertEqual(code, 0, err)
        code, _, err = self.server.command("chat", "Hi", "--url", self.server.url)
        self.assertEqual(code, 1)
        self.assertIn("self-signed certificate", err)
        self.assertNotIn("starts one", err)
        code, _, err = self.server.command("chat", "Hi", "--url", self.server.url, "--insecure", "--api-key", "first")
        self.assertEqual((code, err), (0, ""))
        code, _, err = self.server.command("chat", "Hi", "--url", "ftp://a")
        self.assertEqual(code, 2)
        self.assertIn("--url", err)

    def test_sighup_reads_the_files_again(self):
        """One test: the steps build on each other, and the last one leaves things as they were."""
        old = self.certificate.read_bytes(), self.key.read_bytes()
        fresh = tempfile.TemporaryDirectory(prefix="troupe-tls-")
        self.addCleanup(fresh.cleanup)
        certificate, key = make_certificate(fresh.name, "renewed")
        kept = self.handshake()
        self.addCleanup(kept.close)

        def renew(new_certificate, new_key, keys, said):
            self.certificate.write_bytes(new_certificate)
            self.key.write_bytes(new_key)
            self.keys.write_text(keys, encoding="ascii")
            before = self.server.output.count(said)
            self.server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: self.server.output.count(said) > before, said)

        def serial():
            pem = ssl.get_server_certificate(("127.0.0.1", self.server.port))
            return ssl.PEM_cert_to_DER_cert(pem)

        def allowed(api_key, ca):
            context = ssl.create_default_context(cafile=ca)
            with self.server.client(http_client=openai.DefaultHttpxClient(verify=context)) as client:
                try:
                    return bool(client.with_options(api_key=api_key).models.list().data)
                except openai.AuthenticationError:
                    return False

        first = serial()
        renew(b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", old[1], "first\n", "stay as they were")
        self.assertEqual(serial(), first)
        renew(old[0], key.read_bytes(), "first\n", "stay as they were")  # the key of another certificate
        self.assertEqual(serial(), first)
        self.assertIn("is not the key of the certificate", self.server.output)
        renew(old[0], old[1], "# none\n", "stay as they were")
        self.assertTrue(self.server.get("/v1/models").status == 200)

        renew(certificate.read_bytes(), key.read_bytes(), "second\n", "renewed ")
        wait_until(lambda: serial() != first, "the new certificate")
        self.assertTrue(allowed("second", certificate))
        self.assertFalse(allowed("first", certificate))
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")  # open connections go on with the old certificate
        self.assertIn(b"200 OK", kept.recv(4096))

        # A new front has what was read last, not what it was started with.
        front = self.server.process_pid("front")
        os.kill(front, signal.SIGKILL)
        self.server.tls = ssl.create_default_context(cafile=str(certificate))
        self.server.api_key = "second"
        wait_until(lambda: self.server.is_ready() and self.server.process_pid("front") != front, "a new front")
        self.assertEqual(self.server.get("/v1/models").status, 200)
        renew(*old, "first\n", "renewed ")
        self.server.tls, self.server.api_key = ssl.create_default_context(cafile=str(self.certificate)), "first"
        wait_until(lambda: serial() == first, "the old certificate")


class BadFiles(unittest.TestCase):
    def test_one_sentence_before_the_port_opens(self):
        with tempfile.TemporaryDirectory(prefix="troupe-tls-") as folder:
            home = pathlib.Path(folder)
            certificate, key = make_certificate(home)
            _, other = make_certificate(home, "other")
            _, locked = make_certificate(home, "locked", password="secret")
            weak, weak_key = make_certificate(home, "weak", bits=1024)
            text = home / "text"
            text.write_text("no certificate", encoding="ascii")
            broken = home / "broken"
            broken.write_bytes(certificate.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")
            for cert, key_file, said in ((home / "absent", key, "No such file"), (home, key, "not a regular file"),
                                         (text, key, "nothing in PEM form"), (broken, key, "no certificate"),
                                         (key, key, "no certificate"), (certificate, certificate, "no private key"),
                                         (certificate, other, "not the key of the certificate"),
                                         (certificate, locked, "encrypted"), (weak, weak_key, "too small")):
                code, output, opened = run_serve("--device", "echo", "--ssl-certfile", cert, "--ssl-keyfile", key_file)
                with self.subTest(certificate=cert.name, key=key_file.name):
                    self.assertEqual((code, opened), (2, False), output)
                    self.assertIn(said, output)
                    self.assertIn("--ssl-", output)
                    self.assertEqual(len(output.strip().splitlines()), 1, output)
            code, output, _ = run_serve("--device", "echo", "--ssl-certfile", certificate)
            self.assertEqual(code, 2)
            self.assertIn("--ssl-keyfile", output)


if __name__ == "__main__":
    unittest.main()
