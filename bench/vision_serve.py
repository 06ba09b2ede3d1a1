#!/usr/bin/env python3
"""Images and videos as a client of a running server sees them: time to the first token, and how long they hold other streams up.

    troupe serve --model DIR --load-choices dummy --port 8180 --max-model-len 65536 --reasoning-parser ernie-45-vl-thinking
                 --limit-mm-per-prompt '{"image": 4, "video": 2}' --mm-processor-kwargs '{"image_max_pixels": 12845056}'
                 --media-memory 2147483648
    bench/vision_serve.py --port 8180 [--rows ttft,images,large,video,mixed] [--json]

DIR: build/venv/bin/python tools/generate/make_vision_model.py --out DIR
     --dummy bench/models/ERNIE-4.5-VL-28B-A3B-Thinking/config.json
A model with weights works, too. The server's machine has to have cores left for this client: a loop that reads the streams, and
a process that sends the images. Standard library only; images are JPEGs that it makes itself, others in each run.

    ttft     an image and 100 words to an idle server, median of --images; the same request sent again
    alone    the largest image (--large-side; 16,384 tokens) and a video of --frames frames, each to an idle server
    images   what --streams text streams see while images come at --rate for --seconds
    large    ... the largest image
    video    ... a video of --frames frames
    mixed    ... all of it at once

Of each phase: the longest and the median time between two events of a stream, over all streams, and the 99th percentile; tokens a
second of all streams; time to the first token of what was sent; and the longest pause of this client itself: a gap no longer than
that may be the client's. The bound of gaps and rate is what the same streams had in the seconds before, alone; that of a time to
the first token is the idle server's, where `ttft` or `alone` is measured too. Exit status 1: a figure misses its must; 2: an error.
"""
import argparse
import asyncio
import base64
import gc
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time

import made_jpeg
from sse_streams import Refused, Stream, first_token, pauses

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MUST_TTFT_MS, MUST_AGAIN_MS, MUST_GAP_MS = 220, 60, 65
WIDTH, HEIGHT = 1920, 1080
TOKEN_SIDE = 28  # pixels
LARGE_SIDE = 128 * TOKEN_SIDE
FRAME_WIDTH, FRAME_HEIGHT = 640, 360  # 299 tokens, the fewest of a frame
PHASES = ("images", "large", "video", "mixed")
ROWS = ("ttft", "alone", *PHASES)
TEXT_S = 3.0    # of text alone, before each phase
SETTLE_S = 1.0  # after the streams have started; and after the last answer, which a gap may outlast
QUESTION = " ".join(["the large water mirror under a yellow evening sky"] * 11 + ["now"])  # 100 words


class Report:
    """Rows as bench/report.h prints them."""

    def __init__(self, as_json):
        self.as_json, self.all_met = as_json, True

    def row(self, name, value, unit, bound=0.0, must=0.0, higher=False):
        met = must <= 0 or (value >= must if higher else value <= must)
        self.all_met &= met
        ratio = value / bound if bound else 0.0
        if self.as_json:
            print(json.dumps(
                {"name": name, "value": value, "unit": unit, "bound": bound, "ratio": ratio, "must": must, "met": met}))
        else:
            verdict = "-" if must <= 0 else "met" if met else "MISSED"
            print(f"{name:<44} {value:12.4g} {unit:<8} bound {bound:10.4g}  ratio {ratio:6.3f}  must {'>=' if higher else '<='}"
                  f"{must:10.4g}  {verdict}")
        sys.stdout.flush()


def say(text):
    print(text, file=sys.stderr, flush=True)


def chat_body(*parts):
    content = [*parts, {"type": "text", "text": QUESTION}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0, "ignore_eos": True,
                       "stream": True, "stream_options": {"include_usage": True}}).encode()


def encoded(width, height, seed, coefficients):
    return base64.b64encode(made_jpeg.jpeg(width, height, seed, coefficients)).decode()


class Requests:
    """Bodies of requests, each unlike all others."""

    def __init__(self, seed, frames, large_side):
        self.seed, self.frames, self.large_side = seed, frames, large_side

    def next_seed(self):
        self.seed += 1
        return self.seed

    def image(self):
        url = "data:image/jpeg;base64," + encoded(WIDTH, HEIGHT, self.next_seed(), 12)
        return chat_body({"type": "image_url", "image_url": {"url": url}})

    def large(self):
        url = "data:image/jpeg;base64," + encoded(self.large_side, self.large_side, self.next_seed(), 6)
        return chat_body({"type": "image_url", "image_url": {"url": url}})

    def video(self):
        pictures = (encoded(FRAME_WIDTH, FRAME_HEIGHT, self.next_seed(), 6) for _ in range(self.frames))
        return chat_body({"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join(pictures)}})

    def text(self, tokens):
        prompt = f"{self.next_seed()} {QUESTION}"
        return json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                           "return_token_ids": True}).encode()


class Asker:
    """Sends requests to a server. `large_side`: of the largest image, in pixels."""

    def __init__(self, port, large_side):
        self.port, self.large_side = port, large_side

    def ask(self, kind, body):
        """(when the request was sent, when its first token came). Raises Refused, also of a largest image that was shrunk."""
        sent, first, usage = first_token(self.port, CHAT, body)
        tokens, whole = usage["prompt_tokens_details"]["image_tokens"], (self.large_side // TOKEN_SIDE)**2
        if kind == "large" and tokens != whole:
            raise Refused(f"the largest image has {tokens} tokens there, not {whole}: serve with --mm-processor-kwargs "
                          f"'{{\"image_max_pixels\": {self.large_side**2}}}'")
        return sent, first

    def milliseconds_to_first(self, kind, body):
        sent, first = self.ask(kind, body)
        return 1e3 * (first - sent)


def measure_ttft(report, args, requests, idle):
    asker = Asker(args.port, args.large_side)
    for _ in range(2):
        asker.milliseconds_to_first("image", requests.image())  # the first requests of a server
    new, again = [], []
    for body in [requests.image() for _ in range(args.images)]:
        new.append(asker.milliseconds_to_first("image", body))
        again.append(asker.milliseconds_to_first("image", body))
    say(f"ttft: {args.images} JPEGs of {WIDTH} x {HEIGHT}, the last request {len(body)} bytes; "
        f"new {min(new):.1f} to {max(new):.1f} ms, again {min(again):.1f} to {max(again):.1f} ms")
    idle["image"] = statistics.median(new)
    report.row("ttft.image", idle["image"], "ms", must=MUST_TTFT_MS)
    report.row("ttft.image_again", statistics.median(again), "ms", bound=idle["image"], must=MUST_AGAIN_MS)


def measure_alone(report, args, requests, idle):
    asker = Asker(args.port, args.large_side)
    for kind, body in (("large", requests.large()), ("video", requests.video())):
        say(f"alone: {kind}, a request of {len(body)} bytes")
        idle[kind] = asker.milliseconds_to_first(kind, body)
        report.row(f"ttft.{kind}", idle[kind], "ms")


def schedule(phase, args, requests):
    """[(seconds after the start, kind, body)] of a phase."""
    images = [(n / args.rate, "image", requests.image) for n in range(max(1, int(args.seconds * args.rate)))]
    large, video = (0.2 * args.seconds, "large", requests.large), (0.5 * args.seconds, "video", requests.video)
    wanted = {"images": images, "large": [(0, *large[1:])], "video": [(0, *video[1:])], "mixed": sorted([*images, large, video])}
    return [(at, kind, make()) for at, kind, make in wanted[phase]]


def send_all(asker, pipe):
    """A process of its own: takes a schedule from the pipe, starts at a word, and sends back [(kind, sent, first)] or a text."""
    todo = pipe.recv()
    pipe.send("ready")
    pipe.recv()
    begin, done, failed = time.monotonic(), [], []

    def send(at, kind, body):
        time.sleep(max(0.0, begin + at - time.monotonic()))
        try:
            done.append((kind, *asker.ask(kind, body)))
        except (Refused, OSError) as error:
            failed.append(f"{kind}: {error}")

    threads = [threading.Thread(target=send, args=one) for one in todo]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(failed[0] if failed else done)


async def run_streams(args, requests, pipe):
    """The streams of a phase: (streams, their own start, start of the load, its end, what was sent, pauses of this process)."""
    loop = asyncio.get_running_loop()
    streams = [Stream(COMPLETIONS, requests.text(args.stream_tokens)) for _ in range(args.streams)]
    stood = []
    watch = loop.create_task(pauses(stood))
    for stream in streams:
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", args.port)
    while not all(len(stream.arrivals) > 8 or stream.closed for stream in streams):
        await asyncio.sleep(0.05)
    await asyncio.sleep(SETTLE_S)
    start = time.monotonic()
    await asyncio.sleep(TEXT_S)
    begin = time.monotonic()
    pipe.send("go")
    while not pipe.poll():
        await asyncio.sleep(0.05)
    sent = pipe.recv()
    await asyncio.sleep(SETTLE_S)
    watch.cancel()
    for stream in streams:
        stream.transport.abort()
    if isinstance(sent, str):
        raise Refused(sent)
    return streams, start, begin, max(first for _, _, first in sent), sent, stood


def seen_between(streams, start, end):
    """Of the streams' events: ([(gap in ms, when it ended, tokens of the event that ended it)], tokens a second). A gap counts whole
    if a part of it lies between."""
    gaps, tokens = [], 0
    for events in streams:
        tokens += sum(count for at, count in events if start <= at < end)
        gaps += [(1e3 * (b - a), b, count) for (a, _), (b, count) in zip(events, events[1:], strict=False)
                 if b > start and a < end]
        if not events or events[-1][0] < end:
            raise Refused("a text stream stood still to the end of the measurement")
    return gaps, tokens / (end - start)


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def measure_phase(report, args, requests, idle, phase):
    todo = schedule(phase, args, requests)
    say(f"{phase}: {len(todo)} requests of {sum(len(body) for _, _, body in todo)} bytes, {args.streams} text streams")
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    sender = context.Process(target=send_all, args=(Asker(args.port, args.large_side), end))
    sender.start()
    end.close()
    try:
        pipe.send(todo)
        del todo
        if not pipe.poll(60) or pipe.recv() != "ready":
            raise Refused("the process that sends images did not start")
        gc.collect()
        gc.disable()
        streams, start, begin, over, sent, stood = asyncio.run(run_streams(args, requests, pipe))
    finally:
        gc.enable()
        sender.kill()
        sender.join()
    events = [stream.events() for stream in streams]
    text, text_rate = seen_between(events, start, begin)
    loaded, loaded_rate = seen_between(events, begin, over)
    before, during = [gap for gap, *_ in text], [gap for gap, *_ in loaded]
    report.row(f"{phase}.gap.longest", max(during), "ms", bound=max(before), must=MUST_GAP_MS)
    report.row(f"{phase}.gap.p99", percentile(during, 99), "ms", bound=percentile(before, 99))
    report.row(f"{phase}.gap.median", statistics.median(during), "ms", bound=statistics.median(before))
    report.row(f"{phase}.rate", loaded_rate, "tok/s", bound=text_rate, higher=True)
    for kind in dict.fromkeys(kind for kind, _, _ in sent):
        times = [1e3 * (first - at) for one, at, first in sent if one == kind]
        report.row(f"{phase}.ttft.{kind}", statistics.median(times), "ms", bound=idle.get(kind, 0.0))
    report.row(f"{phase}.client_pause", max(1e3 * late for at, late in stood if at >= begin), "ms")
    say(f"{phase}: {over - begin:.2f} s; longest gaps, and when they ended: "
        + ", ".join(f"{gap:.1f} ms at {at - begin:.3f} s ({streams} streams, {tokens} tokens)"
                    for gap, at, streams, tokens in longest_moments(loaded)))
    for kind, at, first in sorted(sent, key=lambda one: one[1]):
        if kind != "image":
            say(f"{phase}: {kind} sent at {at - begin:.3f} s, first token at {first - begin:.3f} s")


def longest_moments(gaps, count=6, apart_s=0.02):
    """[(gap, when it ended, how many streams had one of at least 0.9 times that then, most tokens of the events that ended them)]:
    the longest gaps at moments of their own. A long step is one of all streams and ends with one token each; one stream alone has
    missed a step, and several tokens have come late together."""
    found = []
    for gap, at, _ in sorted(gaps, reverse=True):
        if all(abs(at - other) > apart_s for _, other, *_ in found):
            alike = [tokens for one, ended, tokens in gaps if one >= 0.9 * gap and abs(ended - at) <= apart_s]
            found.append((gap, at, len(alike), max(alike)))
            if len(found) == count:
                break
    return found


def rows(text):
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in ROWS:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(ROWS)}")
    return wanted


def above_zero(kind):
    def read(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} must be above 0")
        return value
    return read


def side(text):
    value = int(text)
    if value < 2 * TOKEN_SIDE or value % TOKEN_SIDE:
        raise argparse.ArgumentTypeError(f"{text} must be a multiple of {TOKEN_SIDE} from {2 * TOKEN_SIDE}")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    count, number = above_zero(int), above_zero(float)
    parser.add_argument("--port", type=int, required=True, help="of the server, on 127.0.0.1")
    parser.add_argument("--rows", type=rows, default=list(ROWS), help=f"which, with commas (default: {','.join(ROWS)})")
    parser.add_argument("--images", type=count, default=15, help="of ttft (default: 15)")
    parser.add_argument("--streams", type=count, default=32, help="text streams (default: 32)")
    parser.add_argument("--stream-tokens", type=count, default=16384, help="of a text stream, at most (default: 16384)")
    parser.add_argument("--seconds", type=number, default=10.0, help="for which images come (default: 10)")
    parser.add_argument("--rate", type=number, default=2.0, help="images a second (default: 2)")
    parser.add_argument("--frames", type=count, default=180, help="of the video (default: 180)")
    parser.add_argument("--large-side", type=side, default=LARGE_SIDE, metavar="PIXELS",
                        help=f"of the largest image, a multiple of {TOKEN_SIDE} (default: {LARGE_SIDE}, 16,384 tokens)")
    parser.add_argument("--seed", type=int, help="of the images (default: another in each run, so that no cache has them)")
    parser.add_argument("--json", action="store_true", help="one object a line, as from tools/bench --json")
    args = parser.parse_args()
    seed = int.from_bytes(os.urandom(5), "big") if args.seed is None else args.seed
    report, requests, idle = Report(args.json), Requests(seed, args.frames, args.large_side), {}
    try:
        for name in (name for name in ROWS if name in args.rows):
            if name == "ttft":
                measure_ttft(report, args, requests, idle)
            elif name == "alone":
                measure_alone(report, args, requests, idle)
            else:
                measure_phase(report, args, requests, idle, name)
    except (Refused, OSError, EOFError) as error:  # EOFError: the process that sends has ended
        print(f"vision_serve: {error}", file=sys.stderr)
        return 2
    return 0 if report.all_met else 1


if __name__ == "__main__":
    sys.exit(main())
