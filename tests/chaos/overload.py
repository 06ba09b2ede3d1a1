#!/usr/bin/env python3
"""Ten times more requests than there is room for: who finds none hears 429 at once, with Retry-After, and the others finish."""
import http.client
import json
import threading
import time

from chaos import Server, arguments, show

ROOM = 8  # running and waiting
BODY = json.dumps({"prompt": "The sea", "max_tokens": 24, "temperature": 0, "ignore_eos": True})


def ask(server, accepted, refused, wrong, start):
    """One request on a connection that is open before all begin."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.connect()
    start.wait()
    began = time.monotonic()
    connection.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    document = json.loads(answer.read())
    took = time.monotonic() - began
    if answer.status == 200 and document["usage"]["completion_tokens"] == 24:
        accepted.append(took)
    elif answer.status == 429 and answer.headers["Retry-After"] and document["error"]["type"] == "rate_limit_error":
        refused.append(took)
    else:
        wrong.append((answer.status, document))
    connection.close()


if __name__ == "__main__":
    options = arguments(__doc__, 2, "rounds").parse_args()
    accepted, refused, wrong = [], [], []
    with Server("--max-num-seqs", ROOM // 2, "--max-queued-requests", ROOM // 2) as server:
        free = server.free_blocks()
        for _ in range(options.count):
            start = threading.Barrier(10 * ROOM)
            threads = [threading.Thread(target=ask, args=(server, accepted, refused, wrong, start)) for _ in range(10 * ROOM)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert server.free_blocks() == free
        assert server.terminate() == 0
    assert not wrong, wrong[:3]
    assert len(accepted) >= options.count * ROOM // 2, f"only {len(accepted)} of {options.count * 10 * ROOM} were served"
    assert refused, "nobody was refused"
    show("refused", refused)
    show("served", accepted)
