"""The pages in a headless Chromium. Run by tools/test-pages; TROUPE_PICTURES names a folder for pictures of them."""
import json
import os
import signal
import sys
import threading
import time
import unittest

from accessible_test import Accessible  # noqa: F401  (run with those below, as those of the next two)
from browser_case import ADMIN_KEY, HOSTILE, KEY, BrowserCase, answers, picture
from chats_test import Collection, Interrupted, Looks, Narrow, Tabs  # noqa: F401
from chromium import Chromium, binary
from images_test import SeeingModel, TextModel  # noqa: F401
from model_choice_test import ModelChoice  # noqa: F401
from paint_test import Paint  # noqa: F401
from server import Server, wait_until


class Chat(BrowserCase):
    def test_send_stream_and_reload(self):
        page = self.chat()
        self.ask(page, "Qa")
        page.wait(answers(1))
        article = "document.querySelector('article.assistant')"
        self.assertEqual(page.eval(f"{article}.querySelector('.body strong').textContent"), "world")
        self.assertEqual(page.eval(f"{article}.querySelector('.body pre code').textContent"), 'print("hi")')
        self.assertEqual(page.eval(f"{article}.querySelectorAll('.body li').length"), 2)
        self.assertFalse(page.eval(f"{article}.querySelector('details.thinking').open"))
        self.assertIn("The user says", page.eval(f"{article}.querySelector('details.thinking').textContent"))
        self.assertRegex(page.eval(f"{article}.querySelector('.figures-of-answer').textContent"), r"\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ s")
        shown = page.eval(f"{article}.innerText")
        page.reload()
        page.wait(answers(1))
        self.assertEqual(page.eval(f"{article}.innerText"), shown)
        self.assertEqual(page.eval("document.querySelector('#chats li button').textContent"), "Qa")
        self.sound(page)

    def test_stop_regenerate_and_edit(self):
        page = self.chat()
        self.ask(page, "Qe")
        page.wait("document.querySelector('article.assistant .body')?.textContent.includes('word word')")
        self.assertFalse(page.eval("document.getElementById('stop').hidden"))
        page.press("Escape", 27)
        page.wait("document.getElementById('stop').hidden && document.querySelector('article.assistant').textContent.includes('Stopped.')")
        wait_until(lambda: self.server.status()["queues"] and all(q["depth"] == 0 for q in self.server.status()["queues"] if q["name"] == "running"),
                   "the stopped request has ended in the engine")
        press = "[...document.querySelectorAll('article.{} .tools button')].find(b => b.textContent === '{}').click()"
        page.eval(press.format("user", "Edit"))
        page.eval("document.querySelector('article.user textarea').value = ''; document.querySelector('article.user textarea').focus()")
        page.type("Qa")
        page.eval(press.format("user", "Ask again"))
        page.wait(answers(1))
        self.assertEqual(page.eval("document.querySelectorAll('article').length"), 2)
        self.assertIn("Hello world", page.eval("document.querySelector('article.assistant .body').innerText"))
        page.eval("window.answerBefore = document.querySelector('article.assistant'); 0")
        page.eval(press.format("assistant", "Regenerate"))
        page.wait("!window.answerBefore.isConnected")
        page.wait(answers(1))
        self.sound(page)

    def test_hostile_text_stays_text(self):
        page = self.chat()
        self.ask(page, "Qd " + HOSTILE)
        page.wait(answers(1))
        time.sleep(0.2)  # for handlers that must not exist
        body = page.eval("document.querySelector('article.assistant .body').textContent")
        for part in ("<img src=x onerror=", "<script>window.hit=2</script>", "[click](javascript:window.hit=3)", "</code></pre><script>",
                     "<b onmouseover=window.hit=6>T</b>", "<svg onload=window.hit=7>"):
            self.assertIn(part, body)
        self.assertEqual(page.eval("document.querySelectorAll('article img, article script, article svg, article b, article i').length"), 0)
        self.assertEqual(page.eval("[...document.querySelectorAll('article .body a')].map(a => a.protocol).filter(p => p !== 'https:')"), [])
        page.reload()
        page.wait(answers(1))
        self.sound(page)

    def test_the_policy_refuses_what_the_pages_do_not_do(self):
        page = self.chat()
        self.assertIn("TrustedHTML", page.eval("(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (e) { return String(e); } })()"))
        self.assertIn("TrustedScriptURL", page.eval("(() => { try { document.createElement('script').src = 'x.js'; } catch (e) { return String(e); } })()"))
        self.assertEqual(page.eval("fetch('http://127.0.0.1:9/').then(() => 'fetched', () => 'refused')"), "refused")
        self.assertTrue(any("Content Security Policy" in problem or "TrustedHTML" in problem for problem in page.problems), page.problems)

    def test_calls_are_shown_and_get_their_results(self):
        page = self.chat()
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
        page.eval("document.getElementById('settings').open = true")
        page.eval(f"(() => {{ const f = document.getElementById('tools'); f.value = {json.dumps(json.dumps(tools))}; f.dispatchEvent(new Event('change')); }})()")
        self.ask(page, "Qc")
        page.wait(answers(1))
        self.assertEqual(page.eval("document.querySelector('.call strong').textContent"), "Call of get_weather")
        self.assertIn("Paris 你好", page.eval("document.querySelector('.call pre').textContent"))
        page.eval("document.querySelector('.call textarea').value = 'Sunny. Qa'; document.querySelector('.call button').click()")
        page.wait(answers(2))
        self.sound(page)

    def test_copy_buttons(self):
        page = self.chat()
        page.call("Browser.grantPermissions", origin=self.server.url, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self.ask(page, "Qa")
        page.wait(answers(1))

        def press_copy(where):
            """With the mouse: without a person's hand a page may not copy."""
            page.click(f"[...document.querySelectorAll({json.dumps(where)})].find(b => b.textContent === 'Copy')")
            page.wait(f"[...document.querySelectorAll({json.dumps(where)})].some(b => b.textContent === 'Copied')")
            return page.eval("navigator.clipboard.readText()")

        page.call("Page.bringToFront")
        whole = "Hello **world**, with `code`:\n\n```python\nprint(\"hi\")\n```\n\n- one\n- two"
        self.assertEqual(press_copy("article.assistant .code button"), 'print("hi")')
        self.assertEqual(press_copy("article.assistant .tools button").strip(), whole)
        page.wait("![...document.querySelectorAll('button')].some(b => b.textContent === 'Copied')")
        # As on a page that came over plain HTTP from another machine: the clipboard's own interface is missing.
        page.eval("(() => { const real = navigator.clipboard; Object.defineProperty(navigator, 'clipboard', "
                  "{configurable: true, value: {readText: () => real.readText()}}); })()")
        self.assertEqual(press_copy("article.user .tools button"), "Qa")
        self.sound(page)

    def test_several_chats_and_settings(self):
        page = self.chat()
        page.eval("document.getElementById('settings').open = true; document.getElementById('max_tokens').focus()")
        page.type("2.5")
        page.tab()
        page.wait("!document.getElementById('settings-problem').hidden")
        self.assertIn("got 2.5", page.eval("document.getElementById('settings-problem').textContent"))
        self.ask(page, "Qa")
        page.wait("!document.getElementById('notice').hidden")
        page.eval("(() => { const f = document.getElementById('max_tokens'); f.value = '3'; f.dispatchEvent(new Event('change')); })()")
        page.eval("document.getElementById('question').focus()")
        page.enter()
        page.wait(answers(1))
        self.assertIn("limit of tokens", page.eval("document.querySelector('article.assistant').textContent"))
        self.assertIn("3 tokens", page.eval("document.querySelector('.figures-of-answer').textContent"))
        page.eval("document.getElementById('new').click()")
        self.assertEqual(page.eval("document.getElementById('max_tokens').value"), "")
        self.ask(page, "Qa second")
        page.wait(answers(1))
        page.reload()
        page.wait("document.querySelectorAll('#chats li').length === 2")
        page.eval("[...document.querySelectorAll('#chats li button')].find(b => b.textContent === 'Qa').click()")
        page.wait("document.getElementById('max_tokens').value === '3'")
        page.eval("document.querySelector('#chats [aria-label=\"Delete the chat Qa second\"]').click()")
        page.wait("document.querySelectorAll('#chats li').length === 1")
        self.assertEqual(page.dialogs, ['Delete the chat "Qa second"?'])
        self.sound(page)

    def test_a_question_of_two_megabytes_is_kept_and_answered_with_a_sentence(self):
        page = self.chat()
        page.eval("(() => { document.getElementById('question').value = 'word '.repeat(400000); document.getElementById('composer').requestSubmit(); })()")
        page.wait("document.querySelector('article.assistant .problem')?.textContent.length > 20")
        page.reload()
        page.wait("document.querySelector('article.user')?.textContent.length > 1999999")
        self.assertNotEqual(page.eval("document.querySelector('article.assistant .problem').textContent"), "")

    def test_narrow_and_by_keyboard(self):
        page = self.chat()
        page.size(360, 640)
        page.reload()
        page.wait("document.activeElement.id === 'question'")
        self.ask(page, "Qa")
        page.wait(answers(1))
        for path in ("/", "/topology", "/docs"):
            page.goto(self.server.url + path)
            page.wait("document.readyState === 'complete' && document.getElementById('model').textContent !== ''")
            time.sleep(0.7)
            self.assertLessEqual(page.eval("document.documentElement.scrollWidth"), 360, path)
            seen = set()
            for _ in range(12):
                page.tab()
                seen.add(page.eval("document.activeElement.id || document.activeElement.textContent"))
            self.assertGreater(len(seen), 4, (path, seen))
        self.sound(page)

    def test_light_and_dark(self):
        page = self.chat()
        back = "getComputedStyle(document.body).backgroundColor"
        light = page.eval(back)
        page.size(1100, 760, dark=True)
        self.assertNotEqual(page.eval(back), light)
        self.sound(page)

    def test_first_paint(self):
        page = self.open()
        figures = []
        for _ in range(5):
            page.reload()
            figures.append(page.wait("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
        print(f"first paint of / in ms: {', '.join(f'{f:.0f}' for f in figures)} (must 300, aim 100)", file=sys.stderr)
        self.assertGreater(min(figures), 0)
        self.assertLess(min(figures), 3000, "the best of five, ten times what it must be: the machine may be busy")

    def test_the_api_page(self):
        page = self.open("/docs")
        page.wait("document.querySelectorAll('#routes details').length > 10")
        page.eval("document.querySelector('#routes details').open = true")
        page.wait("document.querySelector('#routes table')?.textContent.includes('messages')")
        shown = "[...document.querySelectorAll('#routes details:not([hidden])')].map(route => route.id)"
        everything = page.eval(shown)
        page.eval("document.getElementById('search').focus()")
        page.type("detokenize")
        self.assertEqual(page.wait(f"({shown}).length < {len(everything)} && {shown}"), ["post-/detokenize"])
        self.assertEqual(page.eval("document.getElementById('found').textContent"), f"1 of {len(everything)} routes")
        page.type(" nowhere")
        page.wait(f"({shown}).length === 0")
        page.eval("document.getElementById('search').select()")
        page.type("logprobs")
        page.wait(f"({shown}).includes('post-/v1/chat/completions') && !({shown}).includes('post-/tokenize')")
        self.sound(page)


class Topology(BrowserCase):
    def test_the_live_picture(self):
        page = self.open("/topology")
        page.wait("document.querySelectorAll('#actors tbody tr').length >= 8 && document.querySelectorAll('#graph g').length >= 9")
        client = self.server.client()
        self.addCleanup(client.close)
        stream = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Qb"}], stream=True,
                                                extra_headers={"x-request-id": "seen-live"})
        next(iter(stream))
        page.wait("[...document.querySelectorAll('#requests code')].some(c => c.textContent === 'seen-live')")
        page.eval("document.getElementById('request').focus()")
        page.type("seen-live")
        page.enter()
        page.wait("document.querySelector('#way table')?.textContent.includes('first token')")
        page.wait("document.querySelectorAll('#graph .on-way').length >= 3")
        page.wait("Number(document.querySelectorAll('#summary b')[1].textContent) > 0")
        for _ in stream:
            pass
        page.wait("document.querySelector('#way table').textContent.includes('answered')")
        page.eval("document.getElementById('request').value = 'unknown'; document.getElementById('follow').requestSubmit()")
        page.wait("document.getElementById('way').textContent.includes('No request with the id unknown')")
        self.sound(page)

    def test_restarts_are_seen_live(self):
        page = self.open("/topology")
        row = "[...document.querySelectorAll('#processes tbody tr')].find(r => r.cells[0].textContent.startsWith('{}'))"
        for name in ("worker", "engine", "front"):
            cells = f"{row.format(name)}.cells"
            page.wait(f"{row.format(name)}?.cells[1].textContent === 'ready'")
            before = int(page.eval(f"{cells}[4].textContent"))
            os.kill(self.server.process_pid(name), signal.SIGKILL)
            page.wait(f"Number({row.format(name)}?.cells[4].textContent) === {before + 1} && {cells}[1].textContent === 'ready'")
        # The browser itself reports the stream that the dead front cut, and nothing else.
        self.assertEqual([p for p in page.problems if "net::ERR" not in p], [])


class Keys(BrowserCase):
    api_key = KEY

    def test_the_key_is_asked_for_and_kept_only_when_wanted(self):
        page = self.open()
        for key in ("wrong", KEY):
            page.wait("document.querySelector('dialog')?.open")
            page.eval("document.querySelector('dialog input').value = ''; document.querySelector('dialog input').focus()")
            page.type(key)
            page.enter()
            if key == "wrong":
                page.wait("document.querySelector('dialog')?.textContent.includes('does not know this key')")
        page.wait("document.getElementById('model').textContent !== ''")
        self.ask(page, "Qa")
        page.wait(answers(1))
        self.assertIsNone(page.eval("localStorage.getItem('troupe.key')"))
        page.goto(self.server.url + "/topology")
        page.wait("document.querySelector('dialog')?.open")
        page.eval("document.querySelector('dialog input').focus()")
        page.type(KEY)
        page.enter()
        page.wait("document.querySelector('dialog')?.textContent.includes('admin key')")
        page.eval("document.querySelector('dialog input').value = ''; document.querySelector('dialog .keep').checked = true; "
                  "document.querySelector('dialog input').focus()")
        page.type(ADMIN_KEY)
        page.enter()
        page.wait("document.querySelectorAll('#actors tbody tr').length > 5")
        page.goto(self.server.url + "/docs")
        page.wait("document.querySelectorAll('#routes details').length > 10")
        self.assertTrue(page.eval("document.querySelector('dialog') === null"))


class Pictures(unittest.TestCase):
    """Of the demo model, for the documentation."""

    @unittest.skipUnless(os.environ.get("TROUPE_PICTURES"), "TROUPE_PICTURES names no folder")
    def test_pictures(self):
        with Server() as server, Chromium() as browser:
            page = browser.open(server.url)
            page.size(1000, 640)
            page.wait("document.getElementById('model').textContent !== ''")
            page.eval("(() => { const f = document.getElementById('temperature'); f.value = '0'; f.dispatchEvent(new Event('change')); })()")
            for i, question in enumerate(("What is the capital of France?", "Write a Python function that adds two numbers."), 1):
                page.eval("document.getElementById('question').focus()")
                page.type(question)
                page.enter()
                page.wait(answers(i), seconds=180)
            picture(page, "chat")

            stop = threading.Event()
            story = threading.Thread(target=self.tell, args=(server, stop))
            story.start()
            try:
                page.size(1000, 800)
                page.goto(server.url + "/topology")
                page.wait("[...document.querySelectorAll('#requests code')].some(c => c.textContent === 'story')")
                page.eval("document.getElementById('request').value = 'story'; document.getElementById('follow').requestSubmit()")
                page.wait("document.querySelectorAll('#graph .on-way').length >= 3")
                page.wait("Number(document.querySelectorAll('#summary b')[1].textContent) > 0")
                page.eval("document.activeElement.blur(); scrollTo(0, 0)")
                picture(page, "topology")
            finally:
                stop.set()
                story.join()
            page.goto(server.url + "/docs")
            page.wait("document.querySelectorAll('#routes details').length > 10")
            page.eval("document.querySelector('#routes details').open = true")
            page.wait("document.querySelector('#routes table')?.textContent.includes('messages')")
            picture(page, "api")

    def tell(self, server, stop):
        """One request that runs until `stop` is set."""
        body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 2000, "ignore_eos": True}
        for _ in server.events("/v1/chat/completions", body, {"x-request-id": "story"}):
            if stop.is_set():
                break


if __name__ == "__main__":
    if binary() is None:
        sys.exit("Chromium is missing: tools/test-pages installs it")
    unittest.main()
