#!/usr/bin/env python3
"""Mixed load for a while: whole and streamed answers, clients that leave, requests that are refused, pages. Memory, descriptors
and threads of engine and worker are looked at each second; behind the warm-up they must not grow: by 32 MiB in
a short run, by 1 MiB an hour in one of some hours."""
import os
import random
import threading
import time

from chaos import Answer, Server, arguments, recover

CLIENTS = 4
ROOM_MIB = 32  # growth behind the warm-up that is no leak: caches and the allocator's reserve
SPARE_DESCRIPTORS = 2 * CLIENTS + 8  # connections that are being closed, and looks at the status


def load(server, seed, pause, stop, done, wrong):
    chance = random.Random(seed)
    while not stop.wait(pause):
        body = {"prompt": [chance.randrange(100, 40_000) for _ in range(chance.randrange(1, 300))], "seed": chance.randrange(99),
                "max_tokens": chance.randrange(1, 64), "temperature": chance.choice([0, 1])}
        kind = chance.randrange(5)
        try:
            if kind == 0:
                status = server.post("/v1/completions", body).status
            elif kind == 1:
                status = server.post("/v1/completions", body | {"temperature": -1}).status - 200
            elif kind == 2:
                status = server.get(chance.choice(["/metrics", "/v1/models", "/health"])).status
            else:
                answer = Answer(server, body | {"ignore_eos": True})
                status = answer.response.status
                for number, _ in enumerate(answer.events()):
                    if kind == 4 and number == 3:
                        break
                answer.cut()
        except OSError as e:
            status = repr(e)
        done.append(kind)
        if status != 200:
            wrong.append((kind, status))


def look(pid):
    """MiB resident, open descriptors, threads."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        facts = dict(line.split(":", 1) for line in lines)
    return int(facts["VmRSS"].split()[0]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"])


def slope(points):
    """Of the straight line closest to (second, MiB), in MiB an hour."""
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return 3600 * sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0


if __name__ == "__main__":
    parser = arguments(__doc__, 6, "seconds")
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="of each client between its requests (default: 0)")
    options = parser.parse_args()
    with Server("--device", "echo") as server:
        free = server.all_blocks()
        pids = {name: server.process_pid(name) for name in ("front", "engine", "worker")}
        stop, done, wrong = threading.Event(), [], []
        threads = [threading.Thread(target=load, args=(server, i, options.pause, stop, done, wrong)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        seen = {name: [] for name in pids}
        began = time.monotonic()
        try:
            while (now := time.monotonic() - began) < options.count:
                for name, pid in pids.items():
                    seen[name].append((now, *look(pid)))
                time.sleep(1)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong, wrong[:5]
        recover(server, free)
        print(f"{len(done)} requests in {time.monotonic() - began:.0f} s", flush=True)
        for name, rows in seen.items():
            early, rows = rows[:len(rows) // 3], rows[len(rows) // 3:]  # behind the warm-up
            grown = rows[-1][1] - rows[0][1]
            fds, threads_of = max(r[2] for r in rows), {r[3] for r in rows}
            print(f"{name}: {rows[-1][1]:.0f} MiB, {grown:+.1f} MiB behind the warm-up, "
                  f"{slope([r[:2] for r in rows]):+.1f} MiB/h; at most {fds} descriptors; {sorted(threads_of)} threads", flush=True)
            assert grown < ROOM_MIB, f"{name} grew by {grown:.1f} MiB"
            if rows[-1][0] - rows[0][0] >= 3600:
                assert slope([r[:2] for r in rows]) <= 1, f"{name} grows by more than 1 MiB an hour"
            assert fds <= max(r[2] for r in early) + SPARE_DESCRIPTORS, f"the descriptors of the {name} become more: {fds}"
            assert len(threads_of) == 1, f"the number of threads of the {name} changes"
        assert server.terminate() == 0
