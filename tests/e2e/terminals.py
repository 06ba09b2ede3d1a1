"""The binary on a terminal of its own, which is a pty."""
import fcntl
import os
import pty
import select
import struct
import termios
import time

from server import PATIENCE


class Terminal:
    """The binary with a pty as its terminal. `text` is all it has written."""

    def __init__(self, command, environment, cwd, columns):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execve(command[0], command, environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.status = None

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # EIO: the program has ended
            data = b""
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def expect(self, text, after=0):
        """Reads until `text` stands behind the position `after`; returns the position behind it."""
        end = time.monotonic() + PATIENCE
        while (found := self.text.find(text, after)) < 0:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} is not in {self.text[after:]!r}")
            self.read(0.2)
        return found + len(text)

    def send(self, text):
        data = text.encode()
        while data:  # a pty takes a few KiB at once; its echo is read meanwhile
            if select.select([], [self.fd], [], 0)[1]:
                data = data[os.write(self.fd, data[:1024]):]
            self.read(0)

    def end(self):
        """Ctrl-D; the exit status."""
        self.send("\x04")
        while self.read(PATIENCE):
            pass
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
