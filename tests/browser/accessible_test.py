"""axe-core's rules on the pages: no finding that it calls serious or critical. Part of pages_test.py."""
import importlib.util
import pathlib

from browser_case import answers
from chats_test import ChatCase


def axe_core():
    """The script of axe-core, which the package axe-playwright-python brings."""
    package = importlib.util.find_spec("axe_playwright_python")
    return pathlib.Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")


class Accessible(ChatCase):
    def findings(self, page):
        page.eval(axe_core() + ";0")
        return page.eval("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.filter((v) => ['serious', 'critical'].includes(v.impact))"
                         ".map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.target).join(' ')}`))")

    def test_the_chat(self):
        page = self.chat()
        self.ask(page, "Qg")
        page.wait(answers(1))
        page.eval("document.getElementById('settings').open = true; document.querySelector('details.thinking').open = true")
        page.wait("document.getElementById('strip').textContent.includes('running')")
        for dark in (False, True):
            page.size(1100, 760, dark=dark)
            self.assertEqual(self.findings(page), [], "dark" if dark else "light")
        page.size(390, 844)
        self.assertEqual(self.findings(page), [], "narrow")

    def test_axe_finds_what_is_wrong(self):
        page = self.chat()
        page.eval("document.querySelector('main').append(Object.assign(document.createElement('img'), {src: '/pages/icon.svg'}))")
        self.assertIn("image-alt", " ".join(self.findings(page)))

    def test_topology_and_api(self):
        for path, ready in (("/topology", "document.querySelectorAll('#actors tbody tr').length >= 8 && document.querySelectorAll('#graph g').length >= 9"),
                            ("/docs", "document.querySelectorAll('#routes details').length > 10")):
            page = self.open(path)
            page.wait(ready)
            for dark in (False, True):
                page.size(1100, 760, dark=dark)
                self.assertEqual(self.findings(page), [], path)
