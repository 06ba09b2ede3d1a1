"""Prefill and decode apart on GPUs, in one instance's place: on one machine, where a GPU maps the other's memory, and on two, where
blocks go through page-locked memory, TLS and TCP. All instances are on one GPU; the tests are those of the CPU.

Exit status 77 (skipped) without a GPU."""
import os
import sys
import unittest

os.environ["TROUPE_TEST_DEVICE"] = "cuda"  # before the others are imported

from cuda_test import SKIPPED, why_not  # noqa: E402
from remote_split_test import RemoteSplit  # noqa: E402, F401
from split_test import Split  # noqa: E402, F401

if __name__ == "__main__":
    if reason := why_not():
        print(f"{__file__}:1: Skipped\n{reason}")
        sys.exit(SKIPPED)
    unittest.main()
