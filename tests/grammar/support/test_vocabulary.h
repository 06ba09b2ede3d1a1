#pragma once
// A vocabulary made up for tests and benches: every byte, the marks of JSON, syllables of several scripts,
// one stop token and one special token. Deterministic.
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/grammar/vocabulary.h"

namespace troupe::testing {

/// So many tokens, at least 1,000; the last but one is a special token, the last the stop token.
inline grammar::Vocabulary test_vocabulary(int size = 3000) {
  grammar::Vocabulary out;
  std::set<std::string> seen;
  const auto add = [&](const std::string& token) {
    if (static_cast<int>(out.tokens.size()) < size - 2 && seen.insert(token).second)
      out.tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const int foreign : {0xC0, 0xC1, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF}) {
    out.tokens[static_cast<std::size_t>(foreign)].clear();
  }
  for (const char* mark :
       {"\":",  "\": ",  "\",",  "\", \"", "{\"",  "[{\"",  "\"}",  "\"]", "}}", "]}",  "},",     "],",
        "[[",   "\\\"",  "\\n",  "\\u00",  "true", "false", "null", ", ",  ": ", " {",  " [",     "\n",
        "\n  ", "  ",    "    ", "00",     "10",   "25",    "3.",   "-1",  "e+", "\"a", "\"b\":", "\"name\"",
        "id",   "value", "é",    "ü",      "名",   "字",    "数",   "値",  "😀"}) {
    add(mark);
  }
  const std::vector<std::string> syllables = {"an",  "be",   "ci", "do", "el", "fu", "go", "hi",  "is",
                                              "ja",  "ke",   "lo", "mi", "no", "or", "pa", "qu",  "re",
                                              "st",  "tu",   "un", "ve", "wi", "xy", "yo", "za",  "er",
                                              "ing", "tion", "ah", "ß",  "ñ",  "中", "文", "ова", "ни"};
  std::mt19937 random(7);
  std::uniform_int_distribution<std::size_t> pick(0, syllables.size() - 1);
  while (static_cast<int>(out.tokens.size()) < size - 2) {
    std::string word = random() % 2 == 0 ? " " : "";
    for (std::size_t n = 1 + random() % 4; n > 0; --n) word += syllables[pick(random)];
    if (random() % 16 == 0) word += "\"";
    if (random() % 24 == 0) word = std::to_string(random() % 1000);
    add(word);
  }
  out.tokens.push_back(std::string(1, grammar::kByIdOnly) + "<tool_call>");
  out.tokens.emplace_back("</s>");
  out.stop_ids = {size - 1};
  return out;
}

}  // namespace troupe::testing
