"""A server with several models: the chat page offers them, and a chat's choice is kept. Part of pages_test.py."""
import atexit

from browser_case import FLAGS, answers
from chats_test import ChatCase, script
from chromium import Chromium
from scripted import scripted_model
from server import Server

FIRST, SECOND = {"a": script("I am the first.")}, {"a": script("I am the second.")}
HEADER = "document.getElementById('model').textContent"
BODIES = "[...document.querySelectorAll('article.assistant .body')].map(b => b.textContent.trim())"


class ModelChoice(ChatCase):
    @classmethod
    def setUpClass(cls):
        folders = [scripted_model(scripts) for scripts in (FIRST, SECOND)]
        for folder in folders:
            atexit.register(folder.cleanup)
        cls.server = Server("--model", f"second={folders[1].name}/model", *FLAGS, model=f"first={folders[0].name}/model")
        cls.addClassCleanup(cls.server.stop)
        cls.browser = Chromium()
        cls.addClassCleanup(cls.browser.close)

    def test_a_chat_asks_the_model_that_was_chosen(self):
        page = self.chat()
        page.wait("!document.getElementById('model-label').hidden")
        self.assertEqual(page.eval("[...document.getElementById('model-choice').options].map(o => o.textContent)"), ["first", "second"])
        self.assertEqual(page.eval(HEADER), "first")
        self.ask(page, "Qa")
        page.wait(answers(1))
        self.set_setting(page, "model-choice", "second")
        self.assertEqual(page.eval(HEADER), "second")
        self.ask(page, "Qa")
        page.wait(answers(2))
        self.assertEqual(page.eval(BODIES), ["I am the first.", "I am the second."])
        page.reload()
        page.wait(f"{HEADER} === 'second' && document.getElementById('model-choice').value === 'second'")
        self.sound(page)
