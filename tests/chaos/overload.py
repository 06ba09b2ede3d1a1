#!/usr/bin/env python3
"""Ten times more requests than there is room for: who finds none hears 429 at once, with Retry-After; the others finish, and wait
for their first token hardly longer than as many requests do without the crowd."""
import http.client
import json
import threading
import time

from chaos import Server, arguments, hold, lines_of, percentile, show

ROOM = 8  # running and waiting
TOKENS = 24
BODY = json.dumps({"prompt": "The sea", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True})


class Times:
    def __init__(self):
        self.first, self.whole, self.refused, self.wrong = [], [], [], []


def ask(server, times, start):
    """One request on a connection that is open before all begin."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.connect()
    start.wait()
    began = time.monotonic()
    connection.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status == 200:
        seen = [(time.monotonic() - began, line[6:].strip()) for line in lines_of(answer) if line.startswith(b"data: ")]
        if seen[-1][1] == b"[DONE]" and json.loads(seen[-2][1])["choices"][0]["finish_reason"] == "length":
            times.first.append(seen[0][0])
            times.whole.append(seen[-1][0])
        else:
            times.wrong.append(seen[-2:])
    else:
        document = json.loads(answer.read())
        took = time.monotonic() - began
        if answer.status == 429 and answer.headers["Retry-After"] and document["error"]["type"] == "rate_limit_error":
            times.refused.append(took)
        else:
            times.wrong.append((answer.status, document))
    connection.close()


def crowd(server, size, times):
    start = threading.Barrier(size)
    threads = [threading.Thread(target=ask, args=(server, times, start)) for _ in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not times.wrong, times.wrong[:3]


if __name__ == "__main__":
    options = arguments(__doc__, 2, "rounds").parse_args()
    calm, crowded = Times(), Times()
    with Server("--max-num-seqs", ROOM // 2, "--max-queued-requests", ROOM // 2) as server:
        free = server.all_blocks()
        for _ in range(options.count):
            crowd(server, ROOM, calm)
            crowd(server, 10 * ROOM, crowded)
        assert server.free_blocks() == free
        assert server.terminate() == 0
    assert len(calm.first) >= options.count * ROOM // 2, f"only {len(calm.first)} of {options.count * ROOM} were served"
    assert len(crowded.whole) >= options.count * ROOM // 2, f"only {len(crowded.whole)} of {options.count * 10 * ROOM} were served"
    assert crowded.refused, "nobody was refused"
    show("refused", crowded.refused)
    show("served", crowded.whole)
    show("first token", crowded.first)
    show("first token without the crowd", calm.first)
    hold("refused", crowded.refused, 0.05, 2, options)
    capacity = percentile(calm.first, 0.99)
    hold("first token", crowded.first, 2 * capacity, 10 * capacity + 2, options)
