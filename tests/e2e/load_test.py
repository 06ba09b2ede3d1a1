"""Many requests at once: parallel streams, a full queue, clients that disconnect. Answers must not depend on it."""
import asyncio
import http.client
import json
import signal
import socket
import threading
import time
import unittest

from cases import ServerCase
from server import PATIENCE, Server, wait_until

QUESTIONS = ["What is the capital of France?", "Name three colours.", "Why is the sky blue?",
             "Write one sentence about a river."]
LONG = "The mill stands by the river and the river runs to the sea. " * 30  # several chunks of 64 tokens
LONG_BEFORE_ITS_END = 15  # seconds; a stream of 7,000 tokens takes three times as long on the fastest machine


def greedy_texts(server):
    """Answers to fixed greedy questions, asked one after the other."""
    texts = []
    with server.client() as client:
        for question in QUESTIONS:
            answer = client.chat.completions.create(model="default", temperature=0, max_tokens=40,
                                                    messages=[{"role": "user", "content": question}])
            texts.append(answer.choices[0].message.content)
        texts.append(client.completions.create(model="default", temperature=0, max_tokens=24,
                                               prompt=LONG).choices[0].text)
        seeded = client.completions.create(model="default", temperature=0.9, seed=42, max_tokens=24, prompt="The sea")
        texts.append(seeded.choices[0].text)
    return texts


def stream_many(server, count, max_tokens):
    """Texts of `count` streams that run in parallel."""
    async def one(client, index):
        stream = await client.chat.completions.create(
            model="default", temperature=0, max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
            messages=[{"role": "user", "content": QUESTIONS[index % len(QUESTIONS)]}])
        text, finish, usage = "", None, None
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
        return text, finish, usage.completion_tokens

    async def everything():
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, i) for i in range(count)))

    return asyncio.run(everything())


class Load(ServerCase):
    def test_64_streams(self):
        free = self.server.all_blocks()
        answers = stream_many(self.server, 64, 16)
        for index, (text, finish, tokens) in enumerate(answers):
            self.assertEqual((finish, tokens), ("length", 16), index)
            self.assertEqual(text, answers[index % len(QUESTIONS)][0], "equal questions, equal greedy answers")
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")
        wait_until(lambda: self.server.metrics()["troupe:kv_blocks_leased"] == 0, "metrics that say so")

    def test_a_client_that_goes_away_frees_its_blocks(self):
        free = self.server.all_blocks()
        body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 7000, "ignore_eos": True}
        for leave_after in (0, 1, 5):
            with self.subTest(leave_after=leave_after):
                events = self.server.events("/v1/chat/completions", body)
                next(events)
                if leave_after:
                    wait_until(lambda: self.server.free_blocks() < free, "blocks in use while it runs")
                for _ in range(leave_after):
                    next(events)
                events.close()
                wait_until(lambda: self.server.free_blocks() == free, "every cache block free again", LONG_BEFORE_ITS_END)

    def test_disconnecting_before_the_answer(self):
        """The request is not streamed, and the connection is reset instead of closed."""
        free = self.server.all_blocks()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": LONG, "max_tokens": 7000, "ignore_eos": True}), {"Content-Type": "application/json"})
        wait_until(lambda: self.server.free_blocks() < free, "blocks in use while it runs")
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again", LONG_BEFORE_ITS_END)

    def test_greedy_and_seeded_text_do_not_depend_on_the_load(self):
        alone = greedy_texts(self.server)
        done = threading.Event()

        def keep_busy():
            while not done.is_set():
                stream_many(self.server, 12, 24)

        thread = threading.Thread(target=keep_busy)
        thread.start()
        try:
            time.sleep(0.3)
            self.assertEqual(greedy_texts(self.server), alone)
        finally:
            done.set()
            thread.join()


class StepSizes(unittest.TestCase):
    def test_text_does_not_depend_on_the_token_budget(self):
        texts = {}
        for flags in ((), ("--max-num-batched-tokens", 64, "--max-num-seqs", 4), ("--max-num-batched-tokens", 200)):
            with Server(*flags) as server:
                texts[flags] = greedy_texts(server)
        first = texts.pop(())
        for flags, other in texts.items():
            self.assertEqual(other, first, flags)


class DrainWithoutTime(unittest.TestCase):
    def test_running_and_waiting_requests_get_an_error(self):
        """A running stream gets an error event and [DONE]; a request that waits for a slot gets a 503."""
        server = Server("--drain-timeout", 0, "--max-num-seqs", 1)
        try:
            events = server.events("/v1/completions", {"prompt": LONG, "max_tokens": 7000, "ignore_eos": True})
            next(events)
            answers = []
            waiter = threading.Thread(target=lambda: answers.append(
                server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 2})))
            waiter.start()
            wait_until(lambda: any(q["name"] == "waiting" and q["depth"] == 1 for q in server.status()["queues"]),
                       "a request that waits")
            server.process.send_signal(signal.SIGTERM)
            rest = list(events)
            waiter.join(PATIENCE)
            self.assertEqual(rest[-1], "[DONE]")
            self.assertIn("shutting down", rest[-2])
            self.assertEqual(answers[0].status, 503)
            self.assertEqual(server.process.wait(PATIENCE), 0)
        finally:
            server.stop(kill=True)


class FullQueue(ServerCase):
    flags = ("--max-num-seqs", 1, "--max-queued-requests", 2)

    def test_429_with_retry_after(self):
        answers = []
        body = {"prompt": "The sea", "max_tokens": 400, "temperature": 0, "ignore_eos": True}

        def one():
            began = time.monotonic()
            answer = self.server.post("/v1/completions", body)
            answers.append((answer, time.monotonic() - began))

        threads = [threading.Thread(target=one) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = [(a, s) for a, s in answers if a.status == 200]
        refused = [(a, s) for a, s in answers if a.status == 429]
        self.assertEqual(len(taken) + len(refused), 16, [a.status for a, _ in answers])
        self.assertGreaterEqual(len(taken), 2)
        self.assertGreaterEqual(len(refused), 10)
        self.assertEqual(len({a.json["choices"][0]["text"] for a, _ in taken}), 1)
        for answer, seconds in refused:
            self.assertEqual((answer.error["type"], answer.error["code"]), ("rate_limit_error", "queue_full"))
            self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
            self.assertGreater(int(answer.headers["retry-after-ms"]), 0)
            self.assertLess(seconds, min(s for _, s in taken), "a refusal must not wait for running requests")
        self.assertTrue(self.chat("Hi", max_tokens=1).choices)

    def test_the_sdk_retries_into_an_answer(self):
        """The SDK retries after the time in Retry-After, and all requests succeed in the end."""
        with self.server.client(max_retries=8) as client:
            results, threads = [], []
            for _ in range(6):
                threads.append(threading.Thread(target=lambda: results.append(
                    client.completions.create(model="default", prompt="The", max_tokens=20, temperature=0))))
                threads[-1].start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(results), 6)


if __name__ == "__main__":
    unittest.main()
