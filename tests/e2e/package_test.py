"""The packages that tools/package makes of the built program: what they hold, and that the tarball and the wheel run from where they are put.

tools/test-package installs them on bare systems, which needs root and a network.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

import server

BUILD = server.BINARY.parent
TOOLS = ("cmake", "cpack", "dpkg-deb", "dpkg-shlibdeps", "file", "objdump", "patchelf")
MISSING = [tool for tool in TOOLS if not shutil.which(tool)] + [name for name in ("cmake_install.cmake",) if not (BUILD / name).is_file()]
SECONDS = 600  # compression, on a busy machine


def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS, **options).stdout


@unittest.skipIf(MISSING, f"missing: {', '.join(MISSING)}")
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="troupe-package-")
        cls.addClassCleanup(folder.cleanup)
        cls.home = pathlib.Path(folder.name)
        output(server.ROOT / "tools" / "package", "--build", BUILD, "--out", cls.home / "out")
        found = {file.name.rsplit(".", 1)[1]: file for file in (cls.home / "out").iterdir() if file.name != "SHA256SUMS"}
        cls.deb, cls.tarball, cls.wheel = found["deb"], found["gz"], found["whl"]
        with tarfile.open(cls.tarball) as archive:
            archive.extractall(cls.home, filter="data") if sys.version_info >= (3, 11, 4) else archive.extractall(cls.home)
        cls.unpacked, = cls.home.glob("troupe-*")

    def test_sums(self):
        sums = (self.home / "out/SHA256SUMS").read_text(encoding="ascii")
        self.assertEqual(len(sums.splitlines()), 3)
        output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=self.home / "out")

    def test_the_deb_holds_what_the_tarball_does_but_for_libraries(self):
        files = {line.split(maxsplit=5)[5].removeprefix("./usr/") for line in output("dpkg-deb", "-c", self.deb).splitlines()
                 if not line.startswith("d")}
        beside = {file.relative_to(self.unpacked).as_posix() for file in self.unpacked.rglob("*") if file.is_file()}
        libraries = {file for file in beside if file.startswith(("lib/troupe/", "share/doc/troupe/libraries/"))}
        self.assertEqual({file.removesuffix(".gz") for file in files}, beside - libraries)
        self.assertTrue(libraries)
        for file in ("bin/troupe", "lib/systemd/system/troupe.service", "share/man/man1/troupe-serve.1.gz", "share/doc/troupe/copyright"):
            self.assertIn(file, files)

    def test_what_the_deb_says_of_itself(self):
        version = output(server.BINARY, "version").split()[1]
        self.assertRegex(output("dpkg-deb", "-f", self.deb, "Version").strip(), rf"^{re.escape(version)}-1~[a-z]+[\d.]+(\+cuda)?$")
        needs = output("dpkg-deb", "-f", self.deb, "Depends")
        for name in ("libc6 (>= ", "libcaf-core0.17", "libsentencepiece0"):
            self.assertIn(name, needs)

    def test_units_name_where_the_program_will_be(self):
        output("dpkg-deb", "-x", self.deb, self.home / "deb")
        for unit, program in ((self.home / "deb/usr/lib/systemd/system/troupe.service", "/usr/bin/troupe"),
                              (self.unpacked / "lib/systemd/system/troupe.service", "/usr/local/bin/troupe")):
            self.assertIn(f"\nExecStart={program} serve ", unit.read_text(encoding="utf-8"))

    def test_the_tarball_serves_with_its_own_libraries(self):
        program = self.unpacked / "bin/troupe"
        paths = re.findall(r"=> (/\S+)", output("ldd", program))
        self.assertIn("libcaf_core", " ".join(paths))
        foreign = [path for path in paths if not os.path.realpath(path).startswith(str(self.home.resolve()))]
        self.assertFalse([path for path in foreign if not re.search(r"/lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec)\.so", path)])
        built, server.BINARY = server.BINARY, program
        self.addCleanup(setattr, server, "BINARY", built)
        with server.Server("--device", "echo") as serving:
            code, out, err = serving.command("chat", "hello there")
            self.assertEqual((code, err), (0, ""))
            self.assertTrue(out)

    def test_the_wheel_gives_program_and_module(self):
        environment = self.home / "environment"
        output(sys.executable, "-m", "venv", "--without-pip", environment)
        output(sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "--quiet", "--no-index", self.wheel)
        self.assertEqual(output(environment / "bin/troupe", "version"), output(server.BINARY, "version"))
        # Not activated: the module starts the program of its own environment.
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FD_", "TROUPE_"))} | {"PATH": "/nowhere"}
        told = output(environment / "bin/python", "-m", "fastdeploy.entrypoints.openai.api_server", "--model", server.DEMO_MODEL, "--port", "9133",
                      "--dump-config", env=clean, cwd=self.home)
        self.assertEqual(json.loads(told)["port"], 9133)


if __name__ == "__main__":
    unittest.main()
