"""What the browser paints anew for a key and for a piece of an answer: what has changed, not the conversation. Part of pages_test.py."""
import statistics

from browser_case import ENDLESS, LAST_ALONE, BrowserCase, fill_chat
from scripted import scripted_model

MESSAGES = 30
MOST = 50  # pieces that a frame may paint anew; the conversation has hundreds


class Paint(BrowserCase):
    @classmethod
    def make_model(cls):
        return scripted_model(cls.scripts, LAST_ALONE, endless=ENDLESS)

    def long_chat(self):
        page = self.chat()
        fill_chat(page, MESSAGES)
        page.reload()
        page.wait(f"document.querySelectorAll('article').length === {MESSAGES}")
        page.eval("document.getElementById('question').focus()")
        return page

    def painted(self, page, work):
        """How many pieces each frame has painted anew while work() ran."""
        lists = [event["args"] for event in page.trace(work, "blink", "benchmark") if event["name"] == "PaintController::commitNewDisplayItems"]
        self.assertTrue(lists, "the browser writes down what it paints under another name")
        self.assertGreater(max(one["current_display_list_size"] for one in lists), 2 * MOST)
        return [one["num_non_cached_new_items"] for one in lists]

    def press_keys(self, page):
        for key in "abcdefghij":
            page.press(key, ord(key.upper()), key)
            page.eval("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def test_a_key_paints_the_text_box(self):
        page = self.long_chat()
        self.press_keys(page)
        counts = self.painted(page, lambda: self.press_keys(page))
        self.assertLess(statistics.median(counts), MOST, counts)

    def test_a_piece_of_an_answer_paints_its_last_block(self):
        page = self.long_chat()
        self.ask(page, "Qe")
        page.wait("document.querySelector('article.assistant:last-child .body')?.textContent.includes('word word')")
        counts = self.painted(page, lambda: self.press_keys(page))
        page.press("Escape", 27)
        self.assertLess(statistics.median(counts), MOST, counts)
