#pragma once
// Finds name and arguments in the JSON of one tool call while it is being written.
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// Reads {"name": "f", "arguments": {…}} in pieces of any length. Knows strings and escapes, so that braces
/// and quotes within strings mean nothing. Tolerates what models get wrong: missing outer braces, other keys,
/// "parameters" for "arguments", keys in any order, arguments that are no object (they become {}).
class ToolCallScanner {
 public:
  enum class State : std::uint8_t {
    open,    ///< more text is needed
    closed,  ///< the object is complete
    broken,  ///< the text is no tool call; only while nothing has been announced
  };

  /// What the text given so far has made known.
  struct Delta {
    std::string name;       ///< when the name became known: the name
    std::string arguments;  ///< the next fragment of the arguments
  };

  /// Reads `text` up to the end of the object and adds to `delta`. Returns how many bytes it has read: all of
  /// them while the state stays open.
  std::size_t push(std::string_view text, Delta& delta);

  /// The call's text is over: arguments that were not given become {}.
  void finish(Delta& delta);

  State state() const { return state_; }
  bool announced() const { return announced_; }  ///< a name has been given out
  /// The next character belongs to a JSON string, so that no end tag can begin with it.
  bool inside_string() const { return in_string_ || place_ == Place::key; }

 private:
  enum class Place : std::uint8_t {
    begin,
    key_or_end,
    key,
    colon,
    value,
    name,
    arguments,
    skipped,
    after_value
  };

  void read(char c, Delta& delta);
  void begin_value(char c, Delta& delta);
  void end_value(Delta& delta);
  bool in_value(char c);
  void give_arguments(std::string_view text, Delta& delta);
  void close(Delta& delta);
  void fail();

  State state_ = State::open;
  Place place_ = Place::begin;
  bool braces_ = true;  ///< the object has its outer braces
  bool announced_ = false;
  bool has_arguments_ = false;  ///< their object has begun
  bool in_string_ = false;
  bool escaped_ = false;
  int depth_ = 0;  ///< open brackets of the value being read
  std::string key_;
  std::string name_;   ///< as JSON, without quotes
  std::string early_;  ///< arguments that came before the name
};

}  // namespace troupe
