"""tools/check/executed_code.py: lines that ran, files that belong together, lines of code."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "check"))
import executed_code  # noqa: E402  (found by the line above)

ROOT = pathlib.Path("/src")


def report(folder="/src/build", **counts):
    """A report of gcov; counts: file -> (line number, count) pairs."""
    return {"gcc_version": "12.2.0", "format_version": "1", "current_working_directory": folder, "data_file": "a.gcda",
            "files": [{"file": file, "functions": [], "lines": [
                {"line_number": line, "count": count, "unexecuted_block": False, "branches": [], "function_name": "f"}
                for line, count in lines]} for file, lines in counts.items()]}


class LineCounts(unittest.TestCase):
    def test_paths_are_relative_to_the_root_and_others_are_left_out(self):
        counts = executed_code.line_counts(report(**{"/src/http/a.h": [(3, 2)], "../base/b.cpp": [(1, 1)],
                                                     "/usr/include/c.h": [(1, 9)], "/src2/d.h": [(1, 9)]}), ROOT)
        self.assertEqual(counts, {("http/a.h", 3): 2, ("base/b.cpp", 1): 1})

    def test_instances_of_a_template_are_added_up(self):
        counts = executed_code.line_counts(report(**{"/src/a.h": [(2, 20), (3, 0), (2, 5)]}), ROOT)
        self.assertEqual(counts, {("a.h", 2): 25, ("a.h", 3): 0})

    def test_a_line_is_executed_from_the_least_rise_on(self):
        after = {("a.h", 1): 20, ("a.h", 2): 119, ("a.h", 3): 120, ("b.h", 1): 19}
        before = {("a.h", 2): 100, ("a.h", 3): 100, ("c.h", 1): 50}
        self.assertEqual(executed_code.executed_lines(before, after, 20), {"a.h": {1, 3}})


class CodeLines(unittest.TestCase):
    def count(self, *lines):
        return executed_code.code_lines("\n".join(lines) + "\n")

    def test_comments_and_blanks_are_no_code(self):
        self.assertEqual(self.count("// a", "", "  \t", "int x;  // b", "/* c", " d */", "int y; /* e", "*/ int z;", "/// f"), 3)
        self.assertEqual(self.count("// continued \\", "int x;", "int y;"), 1)

    def test_what_looks_like_a_comment_in_a_string_is_code(self):
        self.assertEqual(self.count('auto a = "/*";', "int x;", 'auto b = "*/ \\" //";', "int y;"), 4)
        self.assertEqual(self.count('auto a = R"x(', "// text", "", ')" /* text', ')x";', "int x;"), 5)
        self.assertEqual(self.count("char q = '\"';  // \"", "// int x;", "char r = '\\'';", "// y"), 2)

    def test_digits_may_have_separators(self):
        self.assertEqual(self.count("int x = 1'000;  // '", "// '", "int y = 0xff'ff;"), 2)


class Figures(unittest.TestCase):
    TEXTS = {"http/a.h": "#pragma once\n// a\n", "http/a.cpp": "int a;\nint b;\n\n", "http/b.h": "int c;\n",
             "http/d.cpp": "int d;\n", "model/a.h": "int e;\n", "model/a.inl": "int f;\nint g;\n", "model/a_test.h": "int h;\n"}

    def test_a_header_and_its_source_file_count_once_with_all_their_code(self):
        units = executed_code.figures({"http/a.cpp": {1, 2}, "http/b.h": {1}, "model/a.inl": {2}}, self.TEXTS)
        self.assertEqual(units, {"http/a": (3, 2), "http/b": (1, 1), "model/a": (3, 1)})
        self.assertEqual(executed_code.by_folder(units), {"http": (2, 4, 3), "model": (1, 3, 1)})
        both = executed_code.figures({"http/a.cpp": {1, 2}, "http/a.h": {1}}, self.TEXTS)
        self.assertEqual(both, {"http/a": (3, 3)})

    def test_an_executed_file_without_text_is_an_error(self):
        with self.assertRaisesRegex(KeyError, "http/other.h"):
            executed_code.figures({"http/other.h": {1}}, self.TEXTS)

    def test_libraries(self):
        for unit, expected in (("text/template/jinja/filters", True), ("base/log", True), ("base/log_writer", True),
                               ("base/logfmt", True), ("text/template/chat_template", False), ("http/base/log", False)):
            self.assertEqual(executed_code.is_library(unit), expected, unit)


if __name__ == "__main__":
    unittest.main()
