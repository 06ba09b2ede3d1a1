"""A test class with one server for all of its tests."""
import sys
import unittest

from server import Server


class MadeWhenUsed:
    """The openai client of a test class, made by the first test that asks for it."""

    def __get__(self, instance, owner):
        owner.client = owner.server.client()
        return owner.client


class ServerCase(unittest.TestCase):
    """Subclasses set the flags. The server must survive every test of the class and then exit with status 0."""

    flags = ()
    options = {}  # keyword arguments of Server
    client = MadeWhenUsed()
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags, **cls.options)
        cls.client = MadeWhenUsed()

    @classmethod
    def tearDownClass(cls):
        if not isinstance(cls.__dict__.get("client"), MadeWhenUsed):
            cls.client.close()
        output = cls.server.output
        status = cls.server.stop()
        if status != 0:
            print(output[-4000:], file=sys.stderr)
            raise AssertionError(f"the server ended with status {status}")

    def chat(self, text, **more):
        """A greedy chat answer through the openai package."""
        parameters = {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0} | more
        return self.client.chat.completions.create(**parameters)

    def complete(self, prompt, **more):
        """A greedy completion through the openai package."""
        return self.client.completions.create(**({"model": "default", "prompt": prompt, "temperature": 0} | more))


class MadeModelCase(ServerCase):
    """Serves a model that is made for the class. Subclasses say how."""

    @classmethod
    def make_model(cls):
        """A TemporaryDirectory with the model in its folder `model`."""
        raise NotImplementedError

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.make_model()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.options = cls.options | {"model": f"{cls.folder.name}/model"}
        super().setUpClass()
