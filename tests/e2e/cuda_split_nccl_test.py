"""Prefill and decode apart on two GPUs, with KV blocks by NCCL: the tests of the CPU, and a worker that stands still while blocks move.

Exit status 77 (skipped) without two GPUs."""
import os
import signal
import subprocess
import sys
import unittest

os.environ["TROUPE_TEST_DEVICE"] = "cuda"  # before the others are imported
os.environ["TROUPE_TEST_KV_TRANSFER"] = "nccl"
os.environ.setdefault("TROUPE_PREFILL_GPU", "1")

from cuda_test import SKIPPED, why_not  # noqa: E402
from server import wait_until  # noqa: E402
from split_test import Split  # noqa: E402


def pairs_made(server):
    """How often a worker of this decode instance has got ready to receive blocks by NCCL."""
    return sum(path.read_text(errors="replace").count("kv_pair_ready") for path in server.log_dir.rglob("*") if path.is_file())


class SplitByNccl(Split):
    def test_a_pair_is_made_once_and_again_after_a_worker_has_ended(self):
        before = pairs_made(self.decode)
        self.assertGreater(before, 0)
        self.pair.kill(self.prefill, "worker")
        self.pair.joined()
        self.assertGreater(pairs_made(self.decode), before)

    def test_nothing_is_cut_when_the_prefill_worker_stands_still(self):
        pid = self.prefill.process_pid("worker")
        self.run_under(lambda: os.kill(pid, signal.SIGSTOP))
        wait_until(lambda: self.prefill.process_pid("worker") not in (pid, 0), "another worker")
        self.pair.joined()


del Split  # its tests are those of SplitByNccl


def gpus():
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        return 0


if __name__ == "__main__":
    reason = why_not() or ("" if gpus() >= 2 else "NCCL takes one rank of each GPU: this needs two")
    if reason:
        print(f"{__file__}:1: Skipped\n{reason}")
        sys.exit(SKIPPED)
    unittest.main()
