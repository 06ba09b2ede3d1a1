"""The start of eight ranks: what they read, the memory they take, what they are refused for, and how they end when one cannot start."""
import datetime
import json
import os
import pathlib
import shutil
import signal
import struct
import tempfile
import unittest

import like_300b
from server import DEMO_MODEL, PATIENCE, ROOT, Server, children_of, has_ended, leftovers, run_serve, wait_until

GOLDEN = ROOT / "tests" / "data" / "goldens" / "moe_ranks8"
RANKS = 8
MIB = 1 << 20
FLAGS = ("--tokenizer", str(DEMO_MODEL), "--device", "cpu", "--max-model-len", 512, "--cpu-threads", 1)
EIGHT = (*FLAGS, "--tensor-parallel-size", RANKS)
# Of a rank's reads beside its share of the weights: headers, configuration, what the loader of programs reads.
OTHER_READS = 2 * MIB
END_SECONDS = 2


def workers(server):
    return {p["name"]: p["pid"] for p in server.status()["processes"] if p["name"].startswith("worker-")}


def number(path, key):
    """Of a line "KEY: NUMBER …"."""
    for line in pathlib.Path(path).read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise AssertionError(f"{path} has no {key}")


def loaded_bytes(server, name):
    """Weights, KV memory and working memory, as the worker logged them."""
    text = "".join(p.read_text(encoding="utf-8") for p in server.log_dir.rglob(f"{name}*") if p.is_file())
    line = next(line for line in text.splitlines() if " event=loaded " in line)
    return sum(int(word.split("=")[1]) for word in line.split() if word.split("=")[0] in ("weight_bytes", "kv_bytes", "arena_bytes"))


def place_of(path, name):
    """(offset in the file, bytes, shape) of a tensor."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    return 8 + size + begin, end - begin, entry["shape"]


def overwrite(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


class Start(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home, cls.model = like_300b.make_model()
        cls.addClassCleanup(home.cleanup)

    def test_weights_are_read_once_and_memory_is_that_of_the_share(self):
        size = (self.model / "model.safetensors").stat().st_size
        for flags in ((), ("--enable-expert-parallel",), ("--quantization", "wint4")):
            with self.subTest(flags=flags), Server(*EIGHT, *flags, model=self.model) as server:
                found = workers(server)
                self.assertEqual(len(found), RANKS)
                read = {name: number(f"/proc/{pid}/io", "rchar") for name, pid in found.items()}
                beside = {name: number(f"/proc/{pid}/status", "VmHWM") * 1024 - loaded_bytes(server, name) for name, pid in found.items()}
                print(f"    {' '.join(flags) or 'bf16'}: all ranks read {sum(read.values()) / size:.3f} × the file, one {min(read.values()) / size:.3f} to "
                      f"{max(read.values()) / size:.3f} ×; the most memory of one beside weights and KV: {max(beside.values()) / MIB:.0f} MiB",
                      flush=True)
                # Where one scale is for all inputs of an output, a rank reads them all, to have the codes that one rank has.
                again = RANKS - 1 if "--quantization" in flags else 0
                self.assertLessEqual(sum(read.values()), 1.05 * size + RANKS * OTHER_READS + again * self.cut_by_inputs())
                self.assertLessEqual(max(beside.values()), 1024 * MIB)

    def cut_by_inputs(self):
        """Bytes of the weights that ranks cut by their inputs."""
        with open(self.model / "model.safetensors", "rb") as file:
            tensors = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        return sum(t["data_offsets"][1] - t["data_offsets"][0] for name, t in tensors.items() if "down_proj" in name or "o_proj" in name)

    def test_a_rank_that_cannot_start_ends_all(self):
        """A number that cannot be quantised, in the columns of rank 5 alone. One of three tries has to be in time, which is
        longer where processes wait for cores."""
        home = tempfile.TemporaryDirectory(prefix="troupe-e2e-rank-")
        self.addCleanup(home.cleanup)
        model = pathlib.Path(home.name) / "model"
        shutil.copytree(self.model, model)
        at, _, (_, columns) = place_of(model / "model.safetensors", "ernie.layers.0.mlp.up_gate_proj.weight")
        overwrite(model / "model.safetensors", at + 2 * (columns // 2 * 5 // RANKS + 1), b"\xc0\x7f")
        times = []
        allowed = END_SECONDS * max(1, os.getloadavg()[0] / os.cpu_count())
        while not times or (len(times) < 3 and min(times) > allowed):
            times.append(self.failing_start(model))
        print(f"    all ended {times} s after a rank could not start", flush=True)
        self.assertLessEqual(min(times), allowed)

    def failing_start(self, model):
        """Starts, and returns how long the others lived after the rank's end, in seconds."""
        server = Server(*EIGHT, "--quantization", "wint8", model=model, wait=False)
        self.addCleanup(server.stop, kill=True)

        family = set()
        wait_until(lambda: family.update(children_of(server.pid)) or server.process.poll() is not None, "the server ends")
        self.assertNotEqual(server.process.wait(PATIENCE), 0)
        log = (server.log_dir / "supervisor" / "supervisor.log").read_text(encoding="utf-8").splitlines()
        at = {word: next(datetime.datetime.fromisoformat(line.split()[0]) for line in log if f" event={word} " in line)
              for word in ("child_fatal", "ended")}
        self.assertRegex(server.output, r"troupe: worker-5: .*ernie\.layers\.0\.mlp\.up_gate_proj\.weight")
        self.assertEqual(([pid for pid in family if not has_ended(pid)], leftovers(server)), ([], []))
        return (at["ended"] - at["child_fatal"]).total_seconds()

    def test_a_rank_that_is_late_is_replaced(self):
        server = Server(*EIGHT, "--start-timeout", 20, model=GOLDEN, wait=False)
        self.addCleanup(server.stop)

        def rank_5():
            for pid in children_of(server.pid):
                try:
                    if b"--rank=5" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                        return pid
                except OSError:
                    pass
            return None
        os.kill(wait_until(rank_5, "rank 5"), signal.SIGSTOP)
        server.wait_ready()
        self.assertIn("was not ready after 20 s (--start-timeout)", server.output)
        self.assertRegex(server.output, "worker-5 .*--start-timeout")


class Changed(unittest.TestCase):
    """While the server runs."""

    def setUp(self):
        home = tempfile.TemporaryDirectory(prefix="troupe-e2e-rank-")
        self.addCleanup(home.cleanup)
        self.model = pathlib.Path(home.name) / "model"
        shutil.copytree(GOLDEN, self.model)

    def test_a_rank_that_comes_back_to_other_weights_is_refused(self):
        server = Server(*EIGHT, "--max-restarts", 1, model=self.model)
        self.addCleanup(server.stop, kill=True)
        name = "model.layers.0.self_attn.o_proj.weight"
        for path in self.model.glob("*.safetensors"):
            try:
                at, size, _ = place_of(path, name)
            except KeyError:
                continue
            overwrite(path, at + size - 2, b"\x00\x40")
        os.kill(workers(server)["worker-3"], signal.SIGKILL)
        self.assertNotEqual(server.process.wait(PATIENCE), 0)
        self.assertIn(f"Rank 3 of 8 finds other weights in the tensor '{name}' of {self.model}", server.output)
        self.assertIn("put the files back that the server was started with, or restart the whole server", server.output)


class Refused(unittest.TestCase):
    def check(self, flags, sentence, **more):
        code, output, opened = run_serve("--model", GOLDEN, "--tokenizer", DEMO_MODEL, *flags, **more)
        self.assertNotEqual(code, 0)
        self.assertIn(sentence, " ".join(output.split()))
        self.assertFalse(opened)

    def test_numbers_of_ranks_that_do_not_divide(self):
        for ranks, sentence in ((3, "num_attention_heads is 16, which --tensor-parallel-size 3 does not divide; 1, 2, 4 and 8 would work."),
                                (32, "num_attention_heads is 16, which --tensor-parallel-size 32 does not divide; 1, 2, 4 and 8 would work."),
                                (33, "--tensor-parallel-size")):
            with self.subTest(ranks):
                self.check(("--device", "cpu", "--tensor-parallel-size", ranks), sentence)

    def test_a_cut_through_a_scale_names_what_would_work(self):
        self.check(("--device", "cpu", "--tensor-parallel-size", 8, "--quantization", "wint4", "--quantization-group", 32), "would work")

    def test_a_device_that_is_named_twice(self):
        for device in ("cuda", "auto"):
            self.check(("--device", device, "--tensor-parallel-size", 2),
                       "CUDA_VISIBLE_DEVICES is 0,1,0, which names device 0 twice; each rank has a GPU of its own",
                       env={"CUDA_VISIBLE_DEVICES": "0,1,0"})


if __name__ == "__main__":
    unittest.main()
