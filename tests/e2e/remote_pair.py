"""A prefill engine and a decode instance on two machines: two supervisors on loopback, with keys of one cluster, and between them a
network that a test can cut."""
from remote import Engine, Wire, cluster, engines_of
from server import Server, wait_until
from split_pair import LEAST, wait_until_joined


class RemotePair:
    """FLAGS are both sides'; PREFILL and DECODE those of one."""

    def __init__(self, folder, model, *flags, prefill=(), decode=()):
        self.keys = cluster(folder, "decode", "prefill")
        self.model, self.flags = model, flags
        self.prefill = Engine(self.keys / "prefill", *flags, "--model", model, *prefill, "--splitwise-role", "prefill")
        self.wire = self.decode = None
        try:
            self.wire = Wire(self.prefill.port)
            self.decode = self.decode_instance("--prefill-engines", self.wire.address, *decode)
        except BaseException:
            self.stop()
            raise

    def decode_instance(self, *flags):
        return Server(*self.flags, "--cluster-keys", self.keys / "decode", "--splitwise-role", "decode", "--prefill-min-tokens", LEAST,
                      *flags, model=self.model)

    def stop(self):
        for part in (self.decode, self.prefill):
            if part is not None:
                part.stop()
        if self.wire is not None:
            self.wire.close()

    def engine(self):
        """What the decode instance says of the prefill engine."""
        return engines_of(self.decode)[self.wire.address]

    def joined(self):
        self.prefill.wait_ready()
        wait_until(lambda: self.decode.is_ready() and self.engine()["state"] == "joined", "the two")
        wait_until_joined(self.decode)
