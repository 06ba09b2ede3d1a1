"""A decode and a prefill instance, what both are asked, and what must be the same as of one instance alone."""
import concurrent.futures
import itertools
import os
import signal

from server import DEVICE, Server, free_port, wait_until
from streams import Stream

LAST_STEP = 128  # tokens of a step
# With TROUPE_TEST_DEVICE=cuda all instances are on one GPU, unless TROUPE_PREFILL_GPU names another for the prefill instance.
FLAGS = ("--dtype", "float32", "--max-model-len", 2048, "--max-num-batched-tokens", LAST_STEP, *{
    "cpu": ("--cpu-threads", 1, "--cpu-kv-bytes", "192MiB"),
    "cuda": ("--batch-invariant", "--max-num-seqs", 32, "--num-gpu-blocks-override", 320),
}[DEVICE])
GPUS = {"CUDA_VISIBLE_DEVICES": os.environ["TROUPE_PREFILL_GPU"]} if "TROUPE_PREFILL_GPU" in os.environ else {}
# How KV blocks are to come: TROUPE_TEST_KV_TRANSFER=nccl takes two GPUs.
TRANSFER = ("--kv-transfer", os.environ["TROUPE_TEST_KV_TRANSFER"]) if "TROUPE_TEST_KV_TRANSFER" in os.environ else ()
LEAST = 100  # tokens of a prompt that is handed over
STORY = "Once upon a time there was a river that had never seen the sea, and it asked every stone on its way. "


def prompt(number, sentences=12):
    return f"Chapter {number}. " + STORY * sentences


def body(number, **more):
    return {"prompt": prompt(number), "max_tokens": 24, "temperature": 0, "ignore_eos": True} | more


def answer_of(server, request):
    """What must be the same: all but ids, times, and what was found in caches."""
    answer = server.post("/v1/completions", request)
    if answer.status != 200:
        raise AssertionError(answer.text)
    usage = answer.json["usage"]
    return answer.json["choices"], usage["prompt_tokens"], usage["completion_tokens"]


def counts_of(decode):
    metrics = decode.metrics()
    return {"handed": metrics["troupe:handed_over_requests_total"], "given back": metrics["troupe:given_back_requests_total"],
            "blocks": metrics["troupe:peer_in_blocks_total"], "failed": metrics["troupe:peer_failed_blocks_total"]}


# For a decode instance whose logs are to say what is copied ahead.
TALKATIVE = ("--log-level", "debug")


def copies_ahead(decode):
    """How often a decode instance with TALKATIVE has asked for blocks of prompts that were still being computed."""
    return sum(path.read_text(errors="replace").count("copied_ahead") for path in decode.log_dir.rglob("*") if path.is_file())


def check_copied_ahead(case, decode):
    """Blocks of a prompt of many steps are copied while later ones are computed."""
    for number in range(300, 310):  # of which one is handed over, also on a machine that stands still now and then
        before, handed = copies_ahead(decode), counts_of(decode)["handed"]
        answer_of(decode, {"prompt": prompt(number, 40), "max_tokens": 2, "temperature": 0, "ignore_eos": True})
        if counts_of(decode)["handed"] > handed and copies_ahead(decode) > before + 1:
            break
    case.assertGreater(copies_ahead(decode), before + 1)
    wait_until(lambda: decode.status()["kv_blocks"]["leased"] == 0, "no block that anything holds")


def wait_until_joined(decode):
    """Until a prompt has gone to the prefill instance and has come back with its blocks."""
    numbers = itertools.count(1000)

    def goes():
        before = counts_of(decode)
        answer_of(decode, body(next(numbers), max_tokens=2))
        after = counts_of(decode)
        return after["handed"] > before["handed"] and after["blocks"] > before["blocks"]
    wait_until(goes, "that prompts are handed over")


def ranks(count):
    """The flags for so many."""
    return () if count == 1 else ("--tensor-parallel-size", count)


class SplitPair:
    """A decode instance, and a prefill instance that may be replaced. `flags` are those of both."""

    def __init__(self, model, *flags, prefill=(), decode=(), least=LEAST):
        self.model, self.prefill_flags = model, (*flags, *prefill)
        self.queue_port = free_port()
        self.prefill = None
        self.decode = Server(*flags, *decode, *TRANSFER, "--splitwise-role", "decode", "--innode-prefill-ports", self.queue_port,
                             "--prefill-min-tokens", least, model=model)
        try:
            self.start_prefill()
        except BaseException:
            self.stop()
            raise

    def start_prefill(self):
        if self.prefill is not None:
            self.prefill.stop()
        self.prefill = Server(*self.prefill_flags, "--splitwise-role", "prefill", "--engine-worker-queue-port", self.queue_port,
                              model=self.model, env={"XDG_RUNTIME_DIR": str(self.decode.runtime_dir)} | GPUS)
        self.joined()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for server in (self.prefill, self.decode):
            if server is not None:
                server.stop()

    def joined(self):
        wait_until_joined(self.decode)

    def ready(self):
        wait_until(lambda: self.decode.is_ready() and self.prefill.is_ready(), "both instances")

    def counts(self):
        return counts_of(self.decode)

    def kill(self, server, name):
        pid = server.process_pid(name)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.process_pid(name) not in (pid, 0), f"another {name}")

    def check_streams(self, case, bodies, texts, act):
        """Streams during which `act` is called when the first has a token: the prompts of others are being computed. Their texts must
        be `texts`, the undisturbed ones."""
        before = self.counts()
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            begun = [pool.submit(Stream, self.decode, one) for one in bodies]
            wait_until(lambda: any(stream.done() for stream in begun), "a first token")
            act()
            for number, (future, text) in enumerate(zip(begun, texts)):
                stream = future.result().join()
                case.assertIsNone(stream.failure, number)
                case.assertIsNone(stream.error, number)
                case.assertEqual(stream.text, text)
                case.assertEqual(stream.events[-1], "[DONE]")
        after = self.counts()
        case.assertGreater(after["handed"] + after["given back"], before["handed"] + before["given back"])
