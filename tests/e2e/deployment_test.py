"""The files that start a cluster: their flags are those of the program, and the script for Slurm runs as it should."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tools" / "cluster"
BINARY = pathlib.Path(os.environ.get("TROUPE_BINARY", ROOT / "build" / "troupe"))

SCONTROL = """#!/bin/sh
printf 'alpha\\nbeta\\n'
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
exec env SLURM_NODEID=0 "$@"
"""
PROGRAM = """#!/bin/sh
echo "$*" >> "$CALLS"
case $1 in engine|serve) exec sleep 60;; esac
"""


def flags_of(command, help_flag="--help=all"):
    text = subprocess.run([BINARY, command, help_flag], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]+", text))


class Files(unittest.TestCase):
    def test_flags_are_those_of_the_program(self):
        known = {command: flags_of(command) for command in ("engine", "serve")}
        known["any"] = known["engine"] | known["serve"] | flags_of("status", "--help")
        unit = (CLUSTER / "troupe-engine.service").read_text(encoding="utf-8")
        start = re.search(r"^ExecStart=\S*troupe engine (.*)$", unit, re.MULTILINE)[1]
        self.assertLessEqual(set(re.findall(r"--[a-z-]+", start)), known["engine"])
        manifest = (CLUSTER / "kubernetes.yaml").read_text(encoding="utf-8")
        for command, flags in re.findall(r"command: \[\S*troupe, (\w+)\]\n\s+args:\n((?:\s+- --.*\n)+)", manifest):
            self.assertLessEqual(set(re.findall(r"--[a-z-]+", flags)), known[command], command)
        self.assertEqual(manifest.count("args:"), 2)
        script = (CLUSTER / "troupe.slurm").read_text(encoding="utf-8")
        for flags in re.findall(r"(?:engine|serve) (--.*(?:\\\n.*)*)", script):
            self.assertLessEqual(set(re.findall(r"--[a-z-]+", flags)), known["any"])


class Slurm(unittest.TestCase):
    def test_a_job_starts_engines_and_a_front_and_ends_them(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("troupe", PROGRAM)):
                (place / name).write_text(text, encoding="utf-8")
                (place / name).chmod(0o755)
            calls = place / "calls"
            job = subprocess.Popen(["bash", CLUSTER / "troupe.slurm", "/models/m", "--max-num-seqs", "8"], stdout=subprocess.PIPE, text=True,
                                   env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls),
                                                     "TROUPE_JOBS": folder, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "alpha,beta"})
            try:
                self.assertEqual(job.stdout.readline(), "The server: http://alpha:8180\n")
                while len(calls.read_text(encoding="utf-8").splitlines()) < 3:
                    pass
            finally:
                job.terminate()
            job.wait(timeout=30)
            job.stdout.close()
            keys, *started = sorted(calls.read_text(encoding="utf-8").splitlines())
            self.assertEqual(keys, f"cluster-keys {folder}/7/keys front engine")
            engine, front = sorted(started)
            self.assertRegex(engine, f"engine --listen .+:7180 --model /models/m --cluster-keys {folder}/7/keys/engine --max-num-seqs 8 "
                                     f"--log-dir {folder}/7/engine-0 --runtime-dir .*")
            self.assertIn(f"serve --engines alpha:7180,beta:7180 --cluster-keys {folder}/7/keys/front --model /models/m", front)
            self.assertEqual((place / "7").stat().st_mode & 0o77, 0)


if __name__ == "__main__":
    unittest.main()
