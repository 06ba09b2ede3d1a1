#include "text/parsers/tool_call_scanner.h"

#include <utility>

#include "base/json.h"

namespace troupe {
namespace {

bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/// The text of a JSON string given without its quotes; empty when it is not valid.
std::string decoded(const std::string& text) {
  auto value = json::parse('"' + text + '"');
  std::string* read = value ? json::text(*value) : nullptr;
  return read != nullptr ? std::move(*read) : std::string();
}

}  // namespace

std::size_t ToolCallScanner::push(std::string_view text, Delta& delta) {
  std::size_t read_bytes = 0;
  while (read_bytes < text.size() && state_ == State::open) read(text[read_bytes++], delta);
  return read_bytes;
}

void ToolCallScanner::finish(Delta& delta) {
  if (state_ == State::open && announced_) close(delta);
}

void ToolCallScanner::read(char c, Delta& delta) {
  switch (place_) {
    case Place::begin:
      if (is_json_space(c)) return;
      braces_ = c == '{';
      place_ = Place::key_or_end;
      if (!braces_) read(c, delta);
      return;
    case Place::key_or_end:
      if (is_json_space(c) || c == ',') return;
      if (c == '"') {
        key_.clear();
        place_ = Place::key;
      } else if (c == '}' && announced_) {
        close(delta);
      } else {
        fail();
      }
      return;
    case Place::key:
      if (c == '"') {
        place_ = Place::colon;
      } else {
        key_ += c;
      }
      return;
    case Place::colon:
      if (is_json_space(c)) return;
      if (c == ':') {
        place_ = Place::value;
      } else {
        fail();
      }
      return;
    case Place::value:
      if (!is_json_space(c)) begin_value(c, delta);
      return;
    case Place::name:
      if (in_value(c)) {
        name_ += c;
      } else {
        end_value(delta);
      }
      return;
    case Place::arguments:
      give_arguments({&c, 1}, delta);
      if (!in_value(c)) end_value(delta);
      return;
    case Place::skipped:
      if (depth_ == 0 && !in_string_ && (c == ',' || c == '}')) {  // the end of a number or a word
        place_ = Place::after_value;
        read(c, delta);
      } else if (!in_value(c) && (c == '"' || c == '}' || c == ']')) {
        end_value(delta);
      }
      return;
    case Place::after_value:
      if (is_json_space(c)) return;
      if (c == ',') {
        place_ = Place::key_or_end;
      } else if (c == '}') {
        place_ = Place::key_or_end;
        read(c, delta);
      } else {
        fail();
      }
      return;
  }
}

void ToolCallScanner::begin_value(char c, Delta& delta) {
  depth_ = 0;
  const bool starts_value = in_value(c);
  if (key_ == "name" && c == '"' && !announced_) {
    place_ = Place::name;
  } else if ((key_ == "arguments" || key_ == "parameters") && c == '{' && !has_arguments_) {
    has_arguments_ = true;
    place_ = Place::arguments;
    give_arguments({&c, 1}, delta);
  } else {
    place_ = Place::skipped;
    if (!starts_value && (c == ',' || c == '}')) fail();
  }
}

/// Follows strings and brackets. False when `c` has ended a string or the outermost bracket, or is part of
/// neither.
bool ToolCallScanner::in_value(char c) {
  if (in_string_) {
    if (std::exchange(escaped_, false)) return true;
    if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return in_string_ || depth_ > 0;
  }
  if (c == '"') {
    in_string_ = true;
    return true;
  }
  if (c == '{' || c == '[') ++depth_;
  if ((c == '}' || c == ']') && depth_ > 0) --depth_;
  return depth_ > 0;
}

void ToolCallScanner::end_value(Delta& delta) {
  if (place_ == Place::name) {
    delta.name = decoded(name_);
    if (delta.name.empty()) {
      fail();
      return;
    }
    announced_ = true;
    delta.arguments += std::exchange(early_, {});
  }
  place_ = Place::after_value;
}

void ToolCallScanner::give_arguments(std::string_view text, Delta& delta) {
  (announced_ ? delta.arguments : early_) += text;
}

void ToolCallScanner::close(Delta& delta) {
  state_ = State::closed;
  if (!std::exchange(has_arguments_, true)) delta.arguments += "{}";
}

/// After the name has been given out the call stands, whatever follows it.
void ToolCallScanner::fail() {
  if (!announced_) state_ = State::broken;
}

}  // namespace troupe
