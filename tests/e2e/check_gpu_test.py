"""`troupe check-gpu` without a GPU: why not, in one sentence, and wrong arguments."""
import subprocess
import unittest

from server import BINARY, PATIENCE


def check_gpu(*arguments, **variables):
    """(exit status, stdout, stderr in one line). No GPU is visible."""
    done = subprocess.run([BINARY, "check-gpu", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False,
                          stdin=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", **variables})
    return done.returncode, done.stdout, " ".join(done.stderr.split())


class WithoutAGpu(unittest.TestCase):
    def test_says_why(self):
        for arguments in ((), ("--device", "3"), ("--json",)):
            code, out, err = check_gpu(*arguments)
            self.assertEqual((code, out), (1, ""), err)
            self.assertTrue(err.startswith("troupe check-gpu: "), err)
            self.assertTrue(err.endswith("."), err)

    def test_the_process_that_checks_says_so_in_a_line(self):
        code, out, err = check_gpu("--worker", "--device", "0", "--first", "0", "--avoid", "")
        self.assertEqual((code, err), (1, ""))
        event, _, sentence = out.rstrip("\n").split("\t")
        self.assertEqual(event, "unusable")
        self.assertTrue(sentence.endswith("."), sentence)

    def test_wrong_arguments(self):
        for arguments, words in ((("--device", "x"), '--device: got "x", expected the number of a GPU'),
                                 (("--device=-1",), "expected the number of a GPU"),
                                 (("now",), 'unexpected "now"'),
                                 (("--worker", "--avoid", "magic"), 'got "magic", expected names of product.stream')):
            code, _, err = check_gpu(*arguments)
            self.assertEqual(code, 2, (arguments, err))
            self.assertIn(words, err)

    def test_the_server_s_variable_of_that_name_is_no_number(self):
        code, _, err = check_gpu(TROUPE_DEVICE="cuda")
        self.assertEqual(code, 1, err)


if __name__ == "__main__":
    unittest.main()
