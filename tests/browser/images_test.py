"""Images on the chat page: given with the button, dropped and pasted; shown, left out again, and sent. Part of pages_test.py."""
import pathlib
import tempfile

from browser_case import BrowserCase, answers  # this makes tests/e2e known
from pictures import ANSWERS, MEDIA, data_url, picture, vision_model

PNG, JPEG, WEBP, GIF = (MEDIA / name for name in ("png_rgb.png", "jpeg_444.jpg", "webp_lossy.webp", "gif_plain.gif"))
CHAT = "/v1/chat/completions"
BUTTON = "document.getElementById('add-image')"
LOG = "document.getElementById('messages')"
NOTICE = "document.getElementById('notice').textContent"
CHOSEN = "document.querySelectorAll('#chosen img').length"
# The images of the first question, as far as they can be seen.
SHOWN = "[...document.querySelectorAll('article.user .images img')].filter(i => i.naturalWidth > 0 && i.checkVisibility()).map(i => i.src)"


def url(path):
    kinds = {".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}
    return data_url(path.read_bytes(), kinds[path.suffix])


class ImagesCase(BrowserCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="troupe-images-")
        self.addCleanup(folder.cleanup)
        self.files = pathlib.Path(folder.name)

    def file(self, name, data):
        (self.files / name).write_bytes(data)
        return self.files / name

    def set_setting(self, page, name, value):
        page.eval(f"(() => {{ const f = document.getElementById('{name}'); f.value = '{value}'; f.dispatchEvent(new Event('change')); }})()")

    def copy(self, page, parts):
        """Puts parts, {type: expression of a Blob or string}, into the clipboard."""
        page.call("Browser.grantPermissions", origin=self.server.url, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        page.call("Page.bringToFront")
        items = ", ".join(f"'{kind}': {value}" for kind, value in parts.items())
        page.eval(f"navigator.clipboard.write([new ClipboardItem({{{items}}})])")

    def paste(self, page):
        page.eval("document.getElementById('question').focus()")
        page.paste()


def blob(path):
    """An expression of the file as a Blob. The policy of the page lets it fetch no data: address."""
    return f"new Blob([Uint8Array.from(atob('{url(path).split(',')[1]}'), (c) => c.charCodeAt(0))], {{type: 'image/png'}})"


class TextModel(ImagesCase):
    """A model that reads text only."""

    def test_it_is_said_that_the_model_cannot_see(self):
        page = self.chat()
        self.assertTrue(page.eval(f"{BUTTON}.hidden"))
        page.drop_files(LOG, [PNG])
        page.wait(f"{NOTICE}.includes('cannot see images')")
        page.eval("document.getElementById('notice').textContent = ''")
        self.copy(page, {"image/png": blob(PNG)})
        self.paste(page)
        page.wait(f"{NOTICE}.includes('cannot see images')")
        self.assertEqual(page.eval(CHOSEN), 0)
        self.assertTrue(page.eval(f"document.getElementById('chosen').hidden && location.pathname === '/' && {NOTICE} !== ''"))
        self.sound(page)

    def test_a_chat_with_images_is_refused_with_a_sentence(self):
        page = self.chat()
        # As if the server had another model since.
        page.eval("import('/pages/chat_images.js').then((m) => m.offerImages({id: 'eyes', capabilities: {vision: true}}))")
        page.drop_files(LOG, [PNG])
        page.wait(f"{CHOSEN} === 1")
        self.ask(page, "What is this?")
        page.wait("document.querySelector('article.assistant .problem')?.textContent.includes('image_url')")
        page.reload()
        page.wait(f"{SHOWN}.length === 1")

    def test_text_that_comes_with_its_picture_is_pasted_as_text(self):
        page = self.chat()
        self.copy(page, {"image/png": blob(PNG), "text/plain": "new Blob(['cells of a table'], {type: 'text/plain'})"})
        self.paste(page)
        page.wait("document.getElementById('question').value === 'cells of a table'")
        self.assertEqual(page.eval(NOTICE), "")
        self.sound(page)


class SeeingModel(ImagesCase):
    flags = ("--dtype", "float32", "--max-model-len", 2048, "--limit-mm-per-prompt", '{"image": 4}')

    @classmethod
    def make_model(cls):
        return vision_model()

    def chat(self):
        page = super().chat()
        page.wait(f"!{BUTTON}.hidden")
        self.set_setting(page, "temperature", 0)
        self.set_setting(page, "max_tokens", 24)
        return page

    def images_sent(self, page):
        return [part["image_url"]["url"] for part in page.body_of(CHAT)["messages"][-1]["content"] if part["type"] == "image_url"]

    def test_the_answer_is_the_one_about_the_image(self):
        page = self.chat()
        page.choose_files(BUTTON, [MEDIA / ANSWERS["prompts"]["one"]["messages"][0]["content"][0]["image_url"]["url"]])
        page.wait(f"{CHOSEN} === 1")
        self.ask(page, "What is this?")
        page.wait(answers(1))
        self.assertEqual(page.eval("document.querySelector('article.assistant .body').textContent").strip(),
                         ANSWERS["prompts"]["one"]["text"].strip())
        self.sound(page)

    def test_button_drop_and_paste(self):
        page = self.chat()
        page.choose_files(BUTTON, [PNG, WEBP])
        page.wait(f"{CHOSEN} === 2")
        page.choose_files(BUTTON, [PNG])  # the same file once more
        page.wait(f"{CHOSEN} === 3")
        page.drop_files(LOG, [JPEG, GIF])
        page.wait(f"{CHOSEN} === 5")
        self.copy(page, {"image/png": blob(PNG)})
        self.paste(page)
        page.wait(f"{CHOSEN} === 6")
        self.assertEqual(page.eval(NOTICE), "")
        for place in (5, 2):  # what was pasted, and the same file once more
            page.click(f"document.querySelectorAll('#chosen button')[{place}]")
        page.wait(f"{CHOSEN} === 4")
        self.ask(page, "What are these?")
        page.wait(answers(1))
        self.assertTrue(page.eval("document.getElementById('chosen').hidden"))
        given = [url(path) for path in (PNG, WEBP, JPEG, GIF)]
        self.assertEqual(self.images_sent(page), given)
        self.assertEqual(page.body_of(CHAT)["messages"][-1]["content"][-1], {"type": "text", "text": "What are these?"})
        self.assertEqual(page.eval(SHOWN), given)
        page.reload()
        page.wait(f"{SHOWN}.length === 4")
        self.assertEqual(page.eval(SHOWN), given)
        self.sound(page)

    def test_what_is_pasted_is_sent(self):
        page = self.chat()
        self.copy(page, {"image/png": blob(PNG)})
        self.paste(page)
        page.wait(f"{CHOSEN} === 1")
        self.ask(page, "")  # an image alone is a question
        page.wait(answers(1))
        self.assertEqual(len(self.images_sent(page)), 1)
        self.assertEqual(page.eval("document.querySelector('#chats li button').textContent"), "Image")
        self.sound(page)

    def test_an_image_still_being_read_is_part_of_the_question(self):
        page = self.chat()
        page.eval("document.getElementById('question').value = 'What is this?'")
        page.eval("(() => { const data = new DataTransfer(); data.items.add(new File([%s], 'dot.png', {type: 'image/png'}));"
                  " document.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));"
                  " document.getElementById('composer').requestSubmit(); })()" % blob(PNG))
        page.wait(answers(1))
        self.assertEqual(self.images_sent(page), [url(PNG)])
        self.assertEqual(page.eval(CHOSEN), 0)

    def test_a_file_that_is_no_picture_is_refused_with_a_sentence(self):
        page = self.chat()
        wrong = {"notes.txt": (self.file("notes.txt", b"words"), "notes.txt is no image."),
                 "words.png": (self.file("words.png", b"words"), "words.png is damaged, or no image."),
                 "drawing.svg": (self.file("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
                                 "drawing.svg is of the type image/svg+xml: PNG, JPEG, WebP and GIF can be sent."),
                 "large.png": (self.file("large.png", b"\0" * (20 * 2**20 + 1)), "large.png has more than 20 MiB.")}
        for name, (path, sentence) in wrong.items():
            with self.subTest(name):
                page.drop_files(LOG, [path])
                page.wait(f"{NOTICE} === '{sentence}'")
                self.assertEqual(page.eval(CHOSEN), 0)
        page.drop_files(LOG, [wrong["notes.txt"][0], PNG, wrong["words.png"][0]])
        page.wait(f"{NOTICE} === 'notes.txt is no image. words.png is damaged, or no image.'")
        self.assertEqual(page.eval(CHOSEN), 1)
        page.drop_files(LOG, [PNG])
        page.wait(f"{CHOSEN} === 2 && {NOTICE} === ''")
        self.sound(page)

    def test_a_damaged_picture_that_a_browser_shows_is_refused_by_the_server_with_a_sentence(self):
        page = self.chat()
        page.drop_files(LOG, [self.file("cut.png", picture(PNG.name)[:60])])
        page.wait(f"{CHOSEN} === 1")
        self.ask(page, "What is this?")
        page.wait("document.querySelector('article.assistant .problem')?.textContent.includes('image_url')")

    def test_more_than_the_server_takes_is_said_and_can_be_mended(self):
        page = self.chat()
        page.choose_files(BUTTON, [PNG] * 5)
        page.wait(f"{CHOSEN} === 5")
        self.ask(page, "What are these?")
        page.wait("document.querySelector('article.assistant .problem')?.textContent.includes('4')")
        page.eval("[...document.querySelectorAll('article.user .tools button')].find(b => b.textContent === 'Edit').click()")
        page.wait("document.querySelectorAll('article.user .images button').length === 5")
        page.click("document.querySelector('article.user .images button')")
        page.wait("document.querySelectorAll('article.user .images img').length === 4")
        page.eval("[...document.querySelectorAll('article.user .tools button')].find(b => b.textContent === 'Ask again').click()")
        page.wait(answers(1))
        self.assertEqual(self.images_sent(page), [url(PNG)] * 4)
        self.assertEqual(page.eval(SHOWN), [url(PNG)] * 4)
