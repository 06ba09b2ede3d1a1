"""Machines with a network between them, made of network namespaces: each host has one with a single interface, a TUN device of which this
process holds the other end, and a thread here passes packets on, late, lost or not at all, as a test wishes. So packets themselves are
delayed and dropped, in one direction if need be, and TCP does what it does in a real network. The addresses are those that RFC 5737 keeps
for documentation; nothing leaves the namespaces.

Needs the right to make namespaces: as root, or in a user namespace of one's own (`become_root()`)."""
import concurrent.futures
import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import threading
import time

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
IFF_UP = 1
NETWORK = "192.0.2."
LONGEST_PACKET = 1 << 16

libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags):
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_not():
    """Why there can be no namespaces with TUN devices here; None: there can. Tried in a child."""
    if (pid := os.fork()) == 0:
        try:
            become_root()
            Host(1).close()
            os._exit(0)
        except OSError as error:
            os.write(2, f"{error}\n".encode())
            os._exit(1)
    return None if os.waitpid(pid, 0)[1] == 0 else "network namespaces with TUN devices cannot be made here"


def become_root():
    """In a user namespace of its own, if the process is not root. Before it has threads."""
    if os.geteuid() == 0:
        return
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as out:
            out.write(text)


class Host:
    """A network namespace. `do(function, …)` runs in it, on a thread that belongs to it; so do the processes that it starts. `here`: the
    calling thread goes there for good, and the threads that it starts."""

    def __init__(self, number, here=False):
        self.address = f"{NETWORK}{number}"
        self.thread = None if here else concurrent.futures.ThreadPoolExecutor(1)
        self.device = self.do(self.open)

    def do(self, function, *arguments, **more):
        return self.thread.submit(function, *arguments, **more).result() if self.thread else function(*arguments, **more)

    def open(self):
        unshare(CLONE_NEWNET)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"net0", IFF_TUN | IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, address in ((SIOCSIFADDR, self.address), (SIOCSIFNETMASK, "255.255.255.0")):
                fcntl.ioctl(control, request, struct.pack("16sHH4s8x", b"net0", socket.AF_INET, 0, socket.inet_aton(address)))
            for name in (b"lo", b"net0"):
                flags = struct.unpack("16sH", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sH22x", name, 0))[:18])[1]
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | IFF_UP))
        return device

    def close(self):
        os.close(self.device)
        if self.thread:
            self.thread.shutdown()


class Network(threading.Thread):
    """What joins hosts. Its settings may be changed at any time, for packets that come later."""

    def __init__(self, hosts):
        super().__init__(daemon=True)
        self.devices = {socket.inet_aton(host.address): host.device for host in hosts}
        self.cut_ways = set()  # (from, to), packed addresses
        self.delay = 0.0       # seconds, each way
        self.loss = 0.0        # share of packets
        self.passed = self.dropped = 0
        self.draw = random.Random(7)
        self.over = threading.Event()
        self.start()

    def cut(self, a, b):
        """No packet from `a` to `b`; the other way stays as it is."""
        self.cut_ways |= {(socket.inet_aton(a.address), socket.inet_aton(b.address))}

    def part(self, a, b):
        self.cut(a, b)
        self.cut(b, a)

    def heal(self):
        self.cut_ways = set()

    def run(self):
        late, order = [], 0
        by_device = {device: address for address, device in self.devices.items()}
        while not self.over.is_set():
            wait = max(0.0, min(0.1, late[0][0] - time.monotonic())) if late else 0.1
            for device in select.select(list(by_device), [], [], wait)[0]:
                while packet := read(device):
                    way = (packet[12:16], packet[16:20])
                    if packet[0] >> 4 != 4 or way[1] not in self.devices:  # what IPv6 says of itself
                        continue
                    if way in self.cut_ways or self.draw.random() < self.loss:
                        self.dropped += 1
                        continue
                    order += 1
                    heapq.heappush(late, (time.monotonic() + self.delay, order, packet))
            while late and late[0][0] <= time.monotonic():
                packet = heapq.heappop(late)[2]
                try:
                    os.write(self.devices[packet[16:20]], packet)
                    self.passed += 1
                except BlockingIOError:
                    self.dropped += 1

    def close(self):
        self.over.set()
        self.join()


def read(device):
    try:
        return os.read(device, LONGEST_PACKET)
    except BlockingIOError:
        return b""
