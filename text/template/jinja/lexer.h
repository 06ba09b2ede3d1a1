#pragma once
// Template source to tokens, with the whitespace rules that chat templates rely on.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::jinja {

struct Token {
  enum class Kind {
    data,         ///< text between tags, already trimmed
    print_begin,  ///< {{
    print_end,    ///< }}
    block_begin,  ///< {%
    block_end,    ///< %}
    name,
    string,  ///< value without quotes, escapes decoded
    integer,
    floating,
    op,  ///< value is its spelling
    end,
  };
  Kind kind = Kind::end;
  std::string value;
  std::int64_t integer = 0;
  double floating = 0;
  int line = 1;

  bool is_op(std::string_view spelling) const { return kind == Kind::op && value == spelling; }
  bool is_name(std::string_view spelling) const { return kind == Kind::name && value == spelling; }
};

/// Most tokens inside one tag; this bounds the depth of the tree.
inline constexpr int kMaxTagTokens = 4096;

/// Reads the source as Jinja does with trim_blocks and lstrip_blocks on (the setting of transformers): the
/// newline after a block or comment tag and the blanks before one at the start of a line are removed, "-"
/// strips further, "+" keeps; line ends become "\n" and one at the very end of the source is dropped. Throws
/// Error with the line. The last token is Kind::end.
std::vector<Token> tokenize(std::string_view source);

}  // namespace troupe::jinja
