"""What tests of the pages share: a server whose model answers by a script, a browser, and a page of it."""
import atexit
import json
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tools" / "generate")]
from chromium import Chromium  # noqa: E402  (found by the line above)
from scripted import PARIS, THINKING_TEMPLATE, THOUGHT, call_json, scripted_model  # noqa: E402
from server import Server  # noqa: E402

KEY = "key-of-the-pages"
ADMIN_KEY = "admin-key-of-the-pages"
HOSTILE = ("<img src=x onerror=\"window.hit=1\"><script>window.hit=2</script>[click](javascript:window.hit=3) "
           "[two](data:text/html,x) ![i](https://a.example/x.png) <a href='javascript:window.hit=4'>x</a>\n\n"
           "```html\n</code></pre><script>window.hit=5</script>\n```\n\n# <b onmouseover=window.hit=6>T</b>\n\n| <i>a</i> | b |\n|---|---|\n| <svg onload=window.hit=7> | 2 |\n")
SCRIPTS = {
    "a": f"{THOUGHT}\n</think>\n\n<response>\nHello **world**, with `code`:\n\n```python\nprint(\"hi\")\n```\n\n- one\n- two\n</response>\n",
    "b": "I count.\n</think>\n\n<response>\n" + "word " * 190 + "end\n</response>\n",
    "c": "I need the weather.\n</think>\n\n\n" + call_json("get_weather", PARIS),
    "d": f"{THOUGHT}\n</think>\n\n<response>\n{HOSTILE}\n</response>\n",
    "e": "I never end.\n</think>\n\n<response>\n" + "word " * 40,
}
# The model reads the last message alone: it has no room for a long chat.
LAST_ALONE = "{%- set messages = messages[-1:] -%}" + THINKING_TEMPLATE
ENDLESS = ("e",)  # an answer that a test stops must not end by itself before
FLAGS = ("--reasoning-parser", "ernie_x1", "--tool-call-parser", "ernie_x1", "--max-restarts", 5)
DONE = "document.getElementById('stop').hidden && document.querySelector('article.assistant:last-child .figures-of-answer')?.textContent.includes('tokens')"


def answers(count):
    return f"document.querySelectorAll('article.assistant').length === {count} && {DONE}"


def picture(page, name):
    if folder := os.environ.get("TROUPE_PICTURES"):
        page.screenshot(pathlib.Path(folder, name + ".png"))


def fill_chat(page, count):
    """Keeps a chat of so many long messages, which the page opens when it is loaded again."""
    page.eval("""(async () => {
      const store = await import("/pages/chat_store.js"), tree = await import("/pages/chat_tree.js");
      const chat = tree.newChat();
      const text = (i) => `# Part ${i}\\n\\n` + "A paragraph with **bold** words, `code` and a [link](https://a.example/).\\n\\n".repeat(12) +
        "```python\\n" + "def f(x):\\n    return x + 1  # one more\\n".repeat(12) + "```\\n\\n| a | b |\\n|---|---|\\n" + "| 1 | 2 |\\n".repeat(8) + "\\n- item\\n".repeat(8);
      let last = null;
      const all = [];
      for (let i = 0; i < %d; ++i) all.push(last = tree.addMessage(chat, last, { role: i %% 2 ? "assistant" : "user", content: text(i), state: "whole" }));
      await store.changeChat(chat, { title: "Long", used: Date.now() + 1e9 });
      await store.keepMessages(...all);
    })()""" % count)


class BrowserCase(unittest.TestCase):
    """Subclasses may serve other scripts or another model, with other flags."""

    scripts, api_key, flags = SCRIPTS, None, FLAGS
    models = {}  # scripts as JSON -> the folder of their model, which takes a while to make and serves all classes

    @classmethod
    def make_model(cls):
        """A TemporaryDirectory with the model in its folder `model`."""
        key = json.dumps(cls.scripts)
        if key not in cls.models:
            cls.models[key] = scripted_model(cls.scripts, endless=ENDLESS)
        return cls.models[key]

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.make_model()
        atexit.register(cls.folder.cleanup)  # and not before: other classes may have it too
        admin = ("--admin-api-key", ADMIN_KEY) if cls.api_key else ()
        cls.server = Server(*cls.flags, *admin, model=f"{cls.folder.name}/model", api_key=cls.api_key)
        cls.addClassCleanup(cls.server.stop)
        cls.browser = Chromium()
        cls.addClassCleanup(cls.browser.close)

    def open(self, path="/"):
        page = self.browser.open(self.server.url + path)
        self.addCleanup(page.call, "Page.close")
        page.size(1100, 760)
        return page

    def chat(self):
        """A page with no chats from the tests before."""
        page = self.open()
        page.eval("new Promise(done => { const all = indexedDB.deleteDatabase('troupe'); all.onsuccess = all.onblocked = done; })")
        page.reload()
        page.wait("document.getElementById('model').textContent !== ''")
        page.eval("document.getElementById('question').focus()")
        return page

    def ask(self, page, text):
        page.eval("document.getElementById('question').focus()")
        page.type(text)
        page.enter()

    def sound(self, page):
        self.assertEqual(page.problems, [])
        self.assertTrue(page.eval("window.hit === undefined"))
