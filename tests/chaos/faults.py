"""Faults of processes, for the scripts beside: one after the other, of random kinds, while 16 clients ask. Between two faults everything
is ready again and each client gets an answer, so that nothing can hang unseen."""
import collections
import http.client
import math
import os
import random
import signal
import subprocess
import threading
import time

from chaos import Answer, arguments, show, wait_until

STOPPED = (0.1, 1.5)  # seconds that a process stands still: less than what replaces it
STARVED = (1.0, 3.0)  # seconds in which it has a core for SHARE of the time
SHARE, TURN = 0.15, 0.06
FULL_WITHIN = 20      # seconds in which others take all KV blocks
NEARLY = 2            # blocks that are left of all


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def kill(pids):
    """False if there is nobody to kill."""
    send(pids, signal.SIGKILL)
    return bool(pids)


def stop(pids, seconds=None):
    """The processes stand still for a while."""
    try:
        send(pids, signal.SIGSTOP)
        time.sleep(random.uniform(*STOPPED) if seconds is None else seconds)
    finally:
        send(pids, signal.SIGCONT)
    return bool(pids)


def slow(pids):
    """The processes run, but seldom, as where others take the processor."""
    until = time.monotonic() + random.uniform(*STARVED)
    while pids and time.monotonic() < until:
        stop(pids, TURN * (1 - SHARE))
        time.sleep(TURN * SHARE)
    return bool(pids)


def full(ask, holder, streams=8):
    """Long prompts of others, sent to `ask`, want more KV blocks than the instance `holder` has, until it has none left, or nearly, and
    a second longer; then they are cut. False if that did not come about."""
    answers, over = [], threading.Event()
    salt = random.random()

    def hold(number):
        try:
            answer = Answer(ask, {"prompt": f"{salt} {number} " + "A river had never seen the sea. " * 90, "max_tokens": 200,
                                  "ignore_eos": True})
            answers.append(answer)
            for _ in answer.events():
                if over.is_set():
                    break
            answer.cut()
        except (OSError, ValueError, http.client.HTTPException):  # its instance has ended
            pass
    threads = [threading.Thread(target=hold, args=(i,), daemon=True) for i in range(streams)]
    for thread in threads:
        thread.start()
    taken, until = False, time.monotonic() + FULL_WITHIN
    while not taken and time.monotonic() < until:
        try:
            taken = holder.free_blocks() <= NEARLY
        except (AssertionError, subprocess.TimeoutExpired):
            pass
    time.sleep(1)
    over.set()
    for answer in answers:
        answer.end()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a stream of others hangs"
    return taken


def options_of(description, count):
    """What the scripts beside are asked for."""
    parser = arguments(description, count, "faults")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no fault begins later, however few there were")
    options = parser.parse_args()
    random.seed(options.seed)
    return options


def run(clients, kinds, options, ready):
    """Faults, as many as the options say, the same number of each kind (`kinds()`: by kind, what each fault of it does; False when there was nothing to do
    it to). Returns how many there were of each fault, and the seconds after which every client had its next answer."""
    done, of_kind, times = collections.Counter(), collections.Counter(), []
    end = time.monotonic() + options.seconds
    while sum(done.values()) < options.count and time.monotonic() < end and not clients.wrong:
        time.sleep(random.random())
        wait_until(ready, "ready between two faults", 120)
        now = kinds()
        fewest = min(of_kind[kind] for kind in now)
        kind = random.choice([kind for kind in now if of_kind[kind] == fewest])
        name, act = random.choice(list(now[kind].items()))
        if not act():
            continue
        before, at = list(clients.finished), time.monotonic()
        of_kind[kind] += 1
        done[name] += 1
        # A request that is there at two deaths may be their cause, and fails when it is there at a third.
        wait_until(lambda seen=before: clients.wrong or all(now > then for now, then in zip(clients.finished, seen)),
                   f"an answer of each client behind: {name}", 180)
        times.append(time.monotonic() - at)
        print(f"{sum(done.values())}: {name}, {times[-1]:.1f} s", flush=True)
    print(f"faults: {dict(of_kind)}", flush=True)
    show("from the end of a fault to the next answer of every client", times)
    return done
