#pragma once
// Reads the committed fixtures in tests/data/text, which tools/generate/make_text_fixtures.py made.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "text/text_span.h"

namespace troupe::test {

inline std::string data_path(const std::string& name) {
  return std::string(TROUPE_TEST_DATA) + "/text/" + name;
}

inline std::string read_data(const std::string& name) {
  std::ifstream stream(data_path(name), std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline nlohmann::ordered_json read_json(const std::string& name) {
  return nlohmann::ordered_json::parse(read_data(name));
}

/// One member of a fixture, by value: a loop over read_json(name)[key] would refer to a destroyed object.
inline nlohmann::ordered_json read_json(const std::string& name, const std::string& key) {
  return read_json(name).at(key);
}

inline std::string joined(const std::vector<TextSpan>& spans) {
  std::string out;
  for (const TextSpan& span : spans) out += span.text;
  return out;
}

}  // namespace troupe::test
