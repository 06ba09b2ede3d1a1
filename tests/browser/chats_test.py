"""What the chat page does with chats: two tabs, reloads, lost connections, branches, search, export. Part of pages_test.py."""
import json
import os
import pathlib
import re
import signal
import tempfile
import time

from browser_case import DONE, SCRIPTS, BrowserCase, answers
from chromium import PATIENCE

CHAT = "/v1/chat/completions"
NOTICE = "document.getElementById('notice').textContent"
BODY = "document.querySelector('article.assistant .body')"
LOOKS = ("Sum $x^2$ and \\(y_1\\), from $5 and $10, or $20 to $30 each.\n\n$$\\frac{a}{b}$$\n\n\\[\\sqrt{z}\\]\n\nBroken $\\frac{$ here.\n\n"
         "- [x] done\n- [ ] open\n\n| left | right |\n|:--|--:|\n| `x|y` | 2 |\n\n```py\ndef f(x):  # <b>no</b>\n    return \"text\"\n```\n")
GROWING = "The first paragraph stays.\n\nThe second one too.\n\n" + "more " * 190


def press(kind, label):
    return f"[...document.querySelectorAll('article.{kind} .tools button')].find(b => b.textContent === '{label}').click()"


def has(kind, label):
    return f"[...document.querySelectorAll('article.{kind} .tools button')].some(b => b.textContent === '{label}')"


def script(answer):
    return f"I answer.\n</think>\n\n<response>\n{answer}\n</response>\n"


class ChatCase(BrowserCase):
    scripts = SCRIPTS | {"f": script(GROWING), "g": script(LOOKS)}

    def set_setting(self, page, name, value):
        page.eval(f"(() => {{ const f = document.getElementById('{name}'); f.value = '{value}'; f.dispatchEvent(new Event('change')); }})()")

    def second_tab(self, count):
        page = self.open()
        page.wait(f"document.querySelectorAll('article').length === {count} && document.getElementById('model').textContent !== ''")
        return page

    def kept(self, page):
        """The contents of all questions in the store."""
        return page.eval("import('/pages/chat_store.js').then(async (s) => (await Promise.all((await s.allChats()).map((c) => s.messagesOf(c.id))))"
                         ".flat().filter((m) => m.role === 'user').map((m) => m.content).sort())")

    def without_failed_loads(self, page):
        self.assertEqual([p for p in page.problems if "net::ERR" not in p], [])
        words = page.eval("document.body.innerText")
        self.assertNotIn("Failed to fetch", words)
        self.assertNotRegex(words, "(?i)network error")


class Tabs(ChatCase):
    def test_each_tab_sees_the_turns_of_the_other(self):
        one = self.chat()
        self.ask(one, "Qa first")
        one.wait(answers(1))
        two = self.second_tab(2)
        self.ask(two, "Qa second")
        two.wait(answers(2))
        one.wait("document.querySelectorAll('article').length === 4 && document.querySelectorAll('article.assistant')[1].textContent.includes('Hello world')")
        self.ask(one, "Qa third")
        one.wait(answers(3))
        two.wait("document.querySelectorAll('article').length === 6")
        two.reload()
        two.wait("document.querySelectorAll('article').length === 6")
        self.assertEqual(two.eval("[...document.querySelectorAll('article.user .body')].map(b => b.textContent)"), ["Qa first", "Qa second", "Qa third"])
        self.sound(one)
        self.sound(two)

    def test_questions_of_two_tabs_at_once_are_both_kept(self):
        one = self.chat()
        self.ask(one, "Qa first")
        one.wait(answers(1))
        two = self.second_tab(2)
        # As if the news of the other tab came late.
        for page in (one, two):
            page.eval("BroadcastChannel.prototype.postMessage = () => {}")
        self.ask(one, "Qa left")
        self.ask(two, "Qa right")
        for page in (one, two):
            page.wait(answers(2))
        self.assertEqual(self.kept(one), ["Qa first", "Qa left", "Qa right"])
        one.reload()
        one.wait(answers(2))
        shown = one.eval("document.querySelectorAll('article.user .body')[1].textContent")
        self.assertIn("/2", one.eval("document.querySelectorAll('article.user')[1].querySelector('.branches').textContent"))
        one.eval("[...document.querySelectorAll('article.user')[1].querySelectorAll('.branches button')].find(b => !b.disabled).click()")
        one.wait(f"document.querySelectorAll('article.user .body')[1].textContent !== '{shown}'")

    def test_an_answer_of_another_tab_is_seen_while_it_comes_and_not_disturbed(self):
        one = self.chat()
        self.ask(one, "Qe")
        one.wait(f"{BODY}?.textContent.includes('word word')")
        two = self.second_tab(2)
        two.wait(f"{BODY}?.textContent.includes('word word')")
        two.wait("!" + has("assistant", "Continue"))
        length = two.eval(f"{BODY}.textContent.length")
        two.wait(f"{BODY}.textContent.length > {length}")
        self.ask(two, "Qa meanwhile")
        two.wait(f"{NOTICE}.includes('still being written')")
        self.assertEqual(two.eval("document.getElementById('question').value"), "Qa meanwhile")
        one.press("Escape", 27)
        two.wait(has("assistant", "Continue"))
        self.sound(one)
        self.sound(two)

    def test_a_chat_deleted_in_one_tab_is_gone_in_the_other(self):
        one = self.chat()
        self.ask(one, "Qa first")
        one.wait(answers(1))
        two = self.second_tab(2)
        two.eval("document.querySelector('#chats [aria-label=\"Delete the chat Qa first\"]').click()")
        one.wait("document.querySelectorAll('article').length === 0")
        self.assertEqual(self.kept(one), [])


class Interrupted(ChatCase):
    def test_a_reload_keeps_what_came_and_it_can_go_on(self):
        page = self.chat()
        self.ask(page, "Qe")
        page.wait(f"{BODY}?.textContent.includes('word word word')")
        page.reload()
        page.wait(has("assistant", "Continue"))
        before = page.eval(f"{BODY}.textContent")
        self.assertIn("word word", before)
        page.eval(press("assistant", "Continue"))
        page.wait("!document.getElementById('stop').hidden")
        sent = page.body_of(CHAT)
        self.assertEqual(sent["messages"][-1]["role"], "assistant")
        self.assertEqual(sent["messages"][-1]["content"].strip(), before.strip())
        self.assertTrue(sent["continue_final_message"])
        self.assertFalse(sent["add_generation_prompt"])
        page.wait(f"document.querySelector('article.assistant').textContent.length > {len(before) + 40}")
        page.press("Escape", 27)
        page.wait("document.getElementById('stop').hidden")
        self.assertTrue(page.eval(f"{BODY}.textContent").startswith(before.strip()))
        self.assertEqual(page.eval("document.querySelectorAll('article').length"), 2)
        self.sound(page)

    def test_a_connection_that_is_lost_keeps_what_came(self):
        page = self.chat()
        self.ask(page, "Qe")
        page.wait(f"{BODY}?.textContent.includes('word word')")
        page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        os.kill(self.server.process_pid("front"), signal.SIGKILL)
        page.wait("document.querySelector('article.assistant .problem')?.textContent.includes('connection')")
        self.assertIn("word word", page.eval(f"{BODY}.textContent"))
        page.wait(has("assistant", "Continue"))
        page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        self.without_failed_loads(page)

    def test_a_server_that_is_away_gets_the_question_once_more_when_it_is_ready(self):
        page = self.chat()
        page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        self.ask(page, "Qa")
        page.wait("document.querySelector('article.assistant')?.textContent.includes('The server does not answer')")
        self.without_failed_loads(page)
        posts = sum(1 for _, method, url in page.sent if method == "POST" and url.endswith(CHAT))
        self.assertEqual(posts, 1)
        page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        page.wait(answers(1))
        self.assertIn("Hello world", page.eval(f"{BODY}.innerText"))
        self.assertEqual(sum(1 for _, method, url in page.sent if method == "POST" and url.endswith(CHAT)), 2)
        self.without_failed_loads(page)

    def test_another_chat_does_not_end_an_answer(self):
        page = self.chat()
        self.ask(page, "Qb")
        page.wait(f"{BODY}?.textContent.includes('word')")
        page.eval("document.getElementById('new').click()")
        page.wait("document.querySelectorAll('article').length === 0")
        self.ask(page, "Qa")
        page.wait(answers(1))
        page.eval("[...document.querySelectorAll('#chats li button')].find(b => b.textContent === 'Qb').click()")
        page.wait(answers(1))
        page.wait(f"{BODY}.textContent.trim().endsWith('end')")
        self.assertFalse(page.eval("document.querySelector('article.assistant').textContent.includes('Stopped.')"))
        self.sound(page)

    def test_a_setting_that_cannot_be_leaves_the_question_where_it_is(self):
        page = self.chat()
        self.set_setting(page, "temperature", 9)
        self.ask(page, "Qa")
        page.wait(f"{NOTICE}.includes('temperature')")
        self.assertIn("got 9", page.eval(NOTICE))
        self.assertEqual(page.eval("document.getElementById('question').value"), "Qa")
        self.assertEqual(page.eval("document.querySelectorAll('article').length"), 0)
        self.set_setting(page, "temperature", 1)
        page.eval("document.getElementById('question').focus()")
        page.enter()
        page.wait(answers(1))
        self.assertEqual(page.eval("document.getElementById('question').value"), "")
        self.sound(page)


class Looks(ChatCase):
    def test_a_selection_stays_while_the_answer_grows(self):
        page = self.chat()
        self.ask(page, "Qf")
        page.wait(f"{BODY}?.querySelectorAll('p').length >= 3")
        page.eval(f"(() => {{ window.marked = {BODY}.querySelector('p'); getSelection().selectAllChildren(window.marked); }})()")
        length = page.eval(f"{BODY}.textContent.length")
        page.wait(f"{BODY}.textContent.length > {length}")
        page.wait(answers(1))
        self.assertEqual(page.eval("getSelection().toString().trim()"), "The first paragraph stays.")
        self.assertTrue(page.eval(f"window.marked.isConnected && {BODY}.querySelector('p') === window.marked"))
        self.sound(page)

    def test_formulas_tasks_tables_and_code(self):
        page = self.chat()
        built = page.eval("fetch('/pages/katex.js').then((r) => r.text()).then((t) => t.length > 10000)")
        self.ask(page, "Qg")
        page.wait(answers(1))
        if built:
            page.wait(f"{BODY}.querySelectorAll('math').length === 4")
            self.assertEqual(page.eval(f"{BODY}.querySelectorAll('math[display=block]').length"), 2)
            self.assertEqual(page.eval(f"{BODY}.querySelectorAll('mfrac, msqrt, msup, msub').length"), 4)
        words = page.eval(f"{BODY}.textContent")
        self.assertIn("from $5 and $10, or $20 to $30 each.", words)
        self.assertIn("Broken $\\frac{$ here.", words)
        self.assertEqual(page.eval(f"[...{BODY}.querySelectorAll('li.task input')].map(i => i.checked)"), [True, False])
        self.assertEqual(page.eval(f"[...{BODY}.querySelectorAll('td')].map(i => i.textContent)"), ["x|y", "2"])
        self.assertEqual(page.eval(f"getComputedStyle({BODY}.querySelectorAll('td')[1]).textAlign"), "right")
        self.assertEqual(page.eval(f"{BODY}.querySelector('.language').textContent"), "Python")
        kinds = page.eval(f"[...{BODY}.querySelectorAll('pre span')].map(s => [s.className, s.textContent])")
        for kind in (["hl-word", "def"], ["hl-call", "f"], ["hl-comment", "# <b>no</b>"], ["hl-word", "return"], ["hl-string", '"text"']):
            self.assertIn(kind, kinds)
        self.assertEqual(page.eval(f"{BODY}.querySelector('pre code').textContent"), 'def f(x):  # <b>no</b>\n    return "text"')
        self.assertEqual(page.eval("document.querySelectorAll('article b, article [onclick], article script').length"), 0)
        self.sound(page)

    def test_the_page_says_how_fast_it_goes_and_what_the_server_does(self):
        page = self.chat()
        page.wait("document.getElementById('strip').textContent.includes('running')")
        self.ask(page, "Qe")
        page.wait("/running [1-9]/.test(document.getElementById('strip').textContent)")
        page.wait(r"/\d+ tokens · [\d.]+ tokens\/s · first after/.test(document.querySelector('.figures-of-answer')?.textContent)")
        self.assertFalse(page.eval("document.getElementById('stop').hidden"))
        page.press("Escape", 27)
        page.wait("document.getElementById('stop').hidden")
        self.sound(page)

    def test_every_sampling_field_shows_what_the_server_takes_for_it(self):
        page = self.chat()
        defaults = self.server.get("/v1/models").json["data"][0]["sampling_defaults"]
        self.assertEqual(len(defaults), 7)
        page.wait("document.getElementById('temperature').placeholder !== \"model's\"")
        for name, value in defaults.items():
            shown = page.eval(f"document.getElementById('{name}').placeholder")
            self.assertEqual(float(re.match(r"-?[\d.]+", shown)[0]), value, name)

    def test_the_theme_is_chosen_and_kept(self):
        page = self.chat()
        back = "getComputedStyle(document.body).backgroundColor"
        light = page.eval(back)
        page.eval("(() => { const t = document.getElementById('theme'); t.value = 'dark'; t.dispatchEvent(new Event('change')); })()")
        dark = page.eval(back)
        self.assertNotEqual(light, dark)
        page.goto(self.server.url + "/topology")
        page.wait("document.getElementById('theme')?.value === 'dark'")
        self.assertEqual(page.eval(back), dark)
        page.eval("localStorage.removeItem('troupe.theme')")


class Collection(ChatCase):
    def test_branches_of_an_edit_and_its_keys(self):
        page = self.chat()
        self.ask(page, "Qb old")
        page.wait(answers(1))
        area = "document.querySelector('article.user textarea')"
        page.eval(press("user", "Edit"))
        page.eval(f"{area}.value = 'thrown away'")
        page.press("Escape", 27)
        page.wait(f"!{area}")
        self.assertEqual(page.eval("document.querySelector('article.user .body').textContent"), "Qb old")
        page.eval(press("user", "Edit"))
        page.eval(f"{area}.value = ''; {area}.focus()")
        page.type("Qa new")
        page.enter()
        page.wait(f"!{area}")
        page.wait(answers(1))
        page.wait(f"{BODY}.innerText.includes('Hello world')")
        self.assertIn("2/2", page.eval("document.querySelector('article.user .branches').textContent"))
        page.eval(press("user", "‹"))
        page.wait(f"{BODY}.textContent.includes('word')")
        self.assertEqual(page.eval("document.querySelector('article.user .body').textContent"), "Qb old")
        page.eval(press("assistant", "Regenerate"))
        page.wait("document.querySelector('article.assistant .branches')?.textContent.includes('2/2')")
        page.wait(answers(1))
        page.reload()
        page.wait("document.querySelector('article.assistant .branches')?.textContent.includes('2/2')")
        self.sound(page)

    def test_search_rename_export_and_import(self):
        page = self.chat()
        self.ask(page, "Qa about tigers")
        page.wait(answers(1))
        page.eval("document.getElementById('new').click()")
        self.ask(page, "Qb about lions")
        page.wait(answers(1))
        titles = "[...document.querySelectorAll('#chats li > button:first-child')].map(b => b.textContent)"
        search = "(() => {{ const s = document.getElementById('search'); s.value = '{}'; s.dispatchEvent(new Event('input')); }})()"
        page.eval(search.format("print("))  # in the answer alone
        page.wait(f"JSON.stringify({titles}) === '[\"Qa about tigers\"]'")
        page.eval(search.format("LIONS"))
        page.wait(f"JSON.stringify({titles}) === '[\"Qb about lions\"]'")
        page.eval(search.format("neither"))
        page.wait("!document.getElementById('none-found').hidden")
        page.eval(search.format(""))
        page.eval("document.querySelector('#chats [aria-label=\"Rename the chat Qa about tigers\"]').click()")
        page.type("Big cats")
        page.enter()
        page.wait(f"{titles}.includes('Big cats')")
        folder = tempfile.TemporaryDirectory(prefix="troupe-export-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder.name)
        page.click("document.getElementById('export')")
        end = time.monotonic() + PATIENCE
        while not (files := list(pathlib.Path(folder.name).glob("troupe-chats-*.json"))):
            self.assertLess(time.monotonic(), end, "no file was written")
            time.sleep(0.05)
        page.wait("true")
        exported = json.loads(files[0].read_text())
        self.assertEqual(sorted(c["title"] for c in exported["chats"]), ["Big cats", "Qb about lions"])
        for title in ("Big cats", "Qb about lions"):
            page.eval(f"document.querySelector('#chats [aria-label=\"Delete the chat {title}\"]').click()")
        page.wait("document.querySelectorAll('article').length === 0")
        page.choose_files("document.getElementById('import')", files)
        page.wait(f"{NOTICE} === '2 chats were read.'")
        page.eval("[...document.querySelectorAll('#chats li button')].find(b => b.textContent === 'Big cats').click()")
        page.wait(f"{BODY}?.innerText.includes('Hello world')")
        wrong = pathlib.Path(folder.name, "wrong.json")
        wrong.write_text('{"chats": 1}')
        page.choose_files("document.getElementById('import')", [wrong])
        page.wait(f"{NOTICE}.includes('holds no chats')")
        self.sound(page)

    def test_chats_of_the_page_before_are_kept(self):
        page = self.chat()
        page.goto(self.server.url + "/docs")  # no store is open there
        page.eval("""new Promise((done) => { const gone = indexedDB.deleteDatabase('troupe'); gone.onsuccess = () => {
            const open = indexedDB.open('troupe', 1);
            open.onupgradeneeded = () => open.result.createObjectStore('chats', {keyPath: 'id'});
            open.onsuccess = () => { const t = open.result.transaction('chats', 'readwrite');
              t.objectStore('chats').put({id: 'x', title: 'Old', used: 5, settings: {temperature: '0'}, messages: [{role: 'user', content: 'Qa'}, {role: 'assistant', content: 'Hi **there**'}]});
              t.objectStore('chats').put({id: 'y', strange: true});
              t.oncomplete = () => { open.result.close(); done(); }; }; }; })""")
        page.goto(self.server.url + "/")
        page.wait(f"{BODY}?.innerText === 'Hi there'")
        self.assertEqual(page.eval("document.getElementById('temperature').value"), "0")
        self.assertEqual(page.eval("document.querySelectorAll('#chats li').length"), 1)
        self.ask(page, "Qa more")
        page.wait(f"document.querySelectorAll('article').length === 4 && {DONE}")
        self.sound(page)


class Narrow(ChatCase):
    def test_at_390_pixels_nothing_is_clipped(self):
        page = self.chat()
        page.size(390, 844)
        self.ask(page, "Qg")
        page.wait(answers(1))
        clipped = ("[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('.hidden, .skip, pre, .scroll, math, select, thead, li') && "
                   "(e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)).map(e => e.outerHTML.slice(0, 120))")
        page.eval("document.getElementById('side').open = true; document.getElementById('settings').open = true")
        self.assertEqual(page.eval(clipped), [])
        self.assertLessEqual(page.eval("document.documentElement.scrollWidth"), 390)
        page.goto(self.server.url + "/topology")
        page.wait("document.querySelectorAll('#actors tbody tr').length >= 8 && document.querySelectorAll('#graph g').length >= 9")
        self.assertEqual(page.eval(clipped), [])
        self.assertGreaterEqual(page.eval("Math.min(...[...document.querySelectorAll('#graph text')].filter(t => t.textContent).map(t => t.getBoundingClientRect().height))"), 11)
        self.assertLessEqual(page.eval("document.querySelector('#graph svg').getBoundingClientRect().right"), 390)
        self.sound(page)
