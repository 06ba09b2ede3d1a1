"""What packages and images are made of, without making one: a wheel of a small tree, the libraries that go along, the files that name others."""
import base64
import csv
import hashlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGING = ROOT / "tools" / "packaging"
IMAGES = ("Dockerfile", "Dockerfile.cuda")


def module(name):
    spec = importlib.util.spec_from_file_location(name, PACKAGING / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        for name in ("bin/troupe", "lib/troupe/libx.so.1", "lib/systemd/system/troupe.service", "share/man/man1/troupe.1"):
            path = self.home / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name, encoding="utf-8")

    def made(self, out="out"):
        (self.home / out).mkdir()
        done = subprocess.run([sys.executable, PACKAGING / "make_wheel.py", "--tree", self.home / "tree", "--module", ROOT / "python",
                               "--version", "0.1.0", "--tag", "manylinux_2_36_x86_64", "--out", self.home / out],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip(), done.stderr

    def test_what_it_holds(self):
        status, name, err = self.made()
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(name, "troupe_fastdeploy-0.1.0-py3-none-manylinux_2_36_x86_64.whl")
        with zipfile.ZipFile(self.home / "out" / name) as wheel:
            files = {info.filename: info for info in wheel.infolist()}
            data = "troupe_fastdeploy-0.1.0.data"
            self.assertEqual({file for file in files if not file.startswith("troupe_fastdeploy-0.1.0.dist-info/")},
                             {f"{data}/scripts/troupe", f"{data}/data/lib/troupe/libx.so.1", f"{data}/data/share/man/man1/troupe.1",
                              *(file.relative_to(ROOT / "python").as_posix() for file in (ROOT / "python").rglob("*.py"))})
            self.assertEqual(files[f"{data}/scripts/troupe"].external_attr >> 16, 0o100755)
            metadata = wheel.read("troupe_fastdeploy-0.1.0.dist-info/METADATA").decode()
            self.assertIn("\nName: troupe-fastdeploy\nVersion: 0.1.0\n", metadata)
            self.assertIn("Tag: py3-none-manylinux_2_36_x86_64\n", wheel.read("troupe_fastdeploy-0.1.0.dist-info/WHEEL").decode())
            record = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.read("troupe_fastdeploy-0.1.0.dist-info/RECORD").decode()))}
            self.assertEqual(set(record), set(files))
            for file, (digest, size) in record.items():
                if not file.endswith("/RECORD"):
                    held = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(file)).digest()).rstrip(b"=").decode()
                    self.assertEqual((digest, size), (f"sha256={held}", str(files[file].file_size)), file)

    def test_the_same_tree_gives_the_same_bytes(self):
        _, name, _ = self.made("a")
        os.utime(self.home / "tree/bin/troupe", (1, 1))
        self.made("b")
        self.assertEqual((self.home / "a" / name).read_bytes(), (self.home / "b" / name).read_bytes())

    def test_a_tree_without_the_program_is_refused(self):
        (self.home / "tree/bin/troupe").unlink()
        status, _, err = self.made()
        self.assertEqual(status, 1)
        self.assertRegex(err, "^make_wheel.py: --tree is .*, which has no bin/troupe\n$")
        self.assertEqual(list((self.home / "out").iterdir()), [])


class Libraries(unittest.TestCase):
    LISTING = ("\tlinux-vdso.so.1 (0x1)\n\tlibcaf_core.so.0.17.6 => /lib/x86_64-linux-gnu/libcaf_core.so.0.17.6 (0x2)\n"
               "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x3)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x4)\n"
               "\tlibcom_err.so.2 => /lib/x86_64-linux-gnu/libcom_err.so.2 (0x5)\n\t/lib64/ld-linux-x86-64.so.2 (0x6)\n")

    def test_all_but_the_c_library_go_along(self):
        self.assertEqual(list(module("bundle_libraries").needed(self.LISTING)), ["libcaf_core.so.0.17.6", "libcom_err.so.2"])

    def test_a_missing_one_is_named(self):
        with self.assertRaisesRegex(ValueError, "^libgif.so.7 is missing"):
            module("bundle_libraries").needed(self.LISTING + "\tlibgif.so.7 => not found\n")

    def test_the_newest_symbol_decides(self):
        self.assertEqual(module("bundle_libraries").least_glibc("(GLIBC_2.9) a\n(GLIBC_2.36) b\n(GLIBC_2.4) c\n(GLIBCXX_3.4.30) d\n"), (2, 36))


class Files(unittest.TestCase):
    def test_program_and_module_have_one_version(self):
        self.assertEqual(re.search(r"^project\(troupe VERSION (\S+)", text_of("CMakeLists.txt"), re.MULTILINE)[1],
                         re.search(r'^version = "(.+)"$', text_of("python/pyproject.toml"), re.MULTILINE)[1])

    def test_images_copy_what_there_is_and_what_setup_reads(self):
        ignored = [line for line in text_of(".dockerignore").splitlines() if line]
        for image in IMAGES:
            copied = []
            for words in re.findall(r"^COPY (?!--from)(.+)$", text_of(image), re.MULTILINE):
                for pattern in words.split()[:-1]:
                    found = sorted(ROOT.glob(pattern)) if pattern != "." else [ROOT]
                    self.assertTrue(found, f"{image}: COPY {pattern}")
                    copied += [file.relative_to(ROOT).as_posix() for file in found]
            self.assertFalse([file for file in copied if file.split("/")[0] in ignored], image)
            made = "tools/setup serve" in text_of(image)
            for file in re.findall(r"tools/generate/\S+?\.py|demo_chat_template\.jinja", text_of("tools/setup")):
                self.assertEqual(made, any(name.endswith(file) for name in copied), f"{image}: {file}")
            for name in ("demo", "fetch", "xgrammar"):
                self.assertIn(f"tools/requirements-{name}.txt", copied, image)

    def test_images_leave_the_names_of_libraries_to_the_package(self):
        for image in IMAGES:
            installed = re.findall(r"apt-get install (.*?)(?: \\|$)", text_of(image), re.MULTILINE)
            self.assertEqual([line.split()[3:] for line in installed], [["/package/troupe_*.deb", "ca-certificates"]], image)

    def test_images_serve_as_a_user_and_say_whether_they_are_ready(self):
        for image in IMAGES:
            last = text_of(image).split("\nFROM ")[-1]
            self.assertRegex(last, r"(?m)^USER [1-9]\d*$", image)
            self.assertRegex(last, r"(?m)^HEALTHCHECK .* CMD .*troupe status ", image)
            self.assertRegex(last, r'(?m)^ENTRYPOINT \["troupe", "serve"\]$', image)

    def test_the_workflow_runs_the_two_commands(self):
        text = text_of(".github/workflows/test.yml")
        self.assertNotIn("\t", text)
        ran = [command.split()[0:] for line in re.findall(r"^\s+- run: (.+)$", text, re.MULTILINE) for command in line.split("&&")]
        for command in ("tools/quickstart --once", "tools/test", "tools/package", "tools/test-package"):
            self.assertIn(command.split(), ran)
        for words in ran:
            if words[0].startswith("tools/"):
                self.assertTrue(os.access(ROOT / words[0], os.X_OK), words)

    def test_scripts_of_the_debian_package_are_shell(self):
        scripts = sorted((PACKAGING / "debian").iterdir())
        self.assertEqual([script.name for script in scripts], ["postinst", "postrm", "prerm"])
        for script in scripts:
            self.assertTrue(os.access(script, os.X_OK), script)
            subprocess.run(["sh", "-n", script], check=True)

    def test_bad_words_get_a_sentence(self):
        for tool, words, sentence in (("package", ["rpm"], 'package: "rpm": expected deb, tarball, wheel, --build DIR or --out DIR\n'),
                                      ("package", ["--build"], "package: --build needs a build directory\n"),
                                      ("test-package", ["--suite", "sid"], 'test-package: --suite is "sid", expected bookworm or noble\n'),
                                      ("test-package", ["none.deb"], 'test-package: "none.deb" is no file\n')):
            done = subprocess.run([ROOT / "tools" / tool, *words], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (1, sentence))


if __name__ == "__main__":
    unittest.main()
