#pragma once
// UTF-8 by table 3-7 of the Unicode standard. Errors are counted by its rule: each maximal incomplete part of
// a character, and each byte that cannot start one, is one error (one U+FFFD). Python, Rust and the reference
// tokenizers follow the same rule.
#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::utf8 {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  ///< U+FFFD

enum class SequenceKind {
  character,   ///< `bytes` form the character `point`
  invalid,     ///< `bytes` can never become a character, whatever follows
  incomplete,  ///< the text ends inside a character; more bytes could complete it
};

struct Step {
  SequenceKind kind = SequenceKind::invalid;
  char32_t point = 0xFFFD;
  int bytes = 1;  ///< 1 to 4
};

/// Reads what starts at text[at]; at < text.size().
Step decode(std::string_view text, std::size_t at);

void append(std::string& out, char32_t point);

/// Number of characters of valid UTF-8.
std::size_t length(std::string_view text);

/// Byte offset of character number `count`, or text.size() when there are fewer. Valid UTF-8 only.
std::size_t offset_of(std::string_view text, std::size_t count);

bool is_valid(std::string_view text);

/// The text with U+FFFD for every error.
std::string to_valid(std::string_view text);

/// What Python's str.isspace() accepts, which strip() and split() use.
bool is_space(char32_t point);

}  // namespace troupe::utf8
