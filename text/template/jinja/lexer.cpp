#include "text/template/jinja/lexer.h"

#include <array>
#include <charconv>

#include "base/utf8.h"
#include "text/template/jinja/error.h"

namespace troupe::jinja {
namespace {

using Kind = Token::Kind;

constexpr std::string_view kBlanks = " \t\n\r\f\v";

// Longest first, so that "//" is not read as two slashes.
constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(utf8::to_valid(source))) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data_until_tag();
    add(Kind::end, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(message, line_); }

  void add(Kind kind, std::string value) {
    Token token;
    token.kind = kind;
    token.value = std::move(value);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  bool ahead(std::string_view text) const {
    return std::string_view(source_).substr(at_, text.size()) == text;
  }
  char peek(std::size_t offset = 0) const {
    return at_ + offset < source_.size() ? source_[at_ + offset] : '\0';
  }

  void skip(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) line_ += source_[at_ + i] == '\n';
    if (count != 0) line_starts_ = source_[at_ + count - 1] == '\n';
    at_ += count;
  }

  void skip_blanks() {
    while (at_ < source_.size() && kBlanks.find(source_[at_]) != kBlanks.npos) skip(1);
  }

  // Adds [at_, end) as data, trimmed for the tag that starts at `end` with the given sign.
  void add_data(std::size_t end, char sign, bool block) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      const std::size_t last = text.find_last_not_of(kBlanks);
      text = text.substr(0, last == text.npos ? 0 : last + 1);
    } else if (sign != '+' && block) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == text.npos ? 0 : newline + 1;
      const bool starts = newline != text.npos || line_starts_;
      if (starts && text.find_first_not_of(kBlanks, line) == text.npos) text = text.substr(0, line);
    }
    if (!text.empty()) add(Kind::data, std::string(text));
    skip(end - at_);
  }

  // The end of a block or comment tag takes the newline that follows it.
  void end_tag(std::size_t delimiter_bytes, char sign) {
    skip(delimiter_bytes);
    if (sign == '-') {
      skip_blanks();
    } else if (sign != '+' && peek() == '\n') {
      skip(1);
    }
  }

  void data_until_tag() {
    std::size_t open = at_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == source_.npos || open + 1 >= source_.size()) return add_data(source_.size(), '+', false);
      if (source_[open + 1] == '{' || source_[open + 1] == '%' || source_[open + 1] == '#') break;
    }
    const char type = source_[open + 1];
    const char next = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    add_data(open, sign, type != '{');
    const std::size_t opening = sign == '\0' ? 2 : 3;
    if (type == '#') return comment(opening);
    if (type == '%' && raw_tag(opening)) return;
    skip(opening);
    add(type == '{' ? Kind::print_begin : Kind::block_begin, {});
    tag(type == '{');
  }

  void comment(std::size_t opening) {
    const std::size_t close = source_.find("#}", at_ + opening);
    if (close == source_.npos) fail("a comment is not closed by \"#}\"");
    const char sign = close > at_ + opening ? source_[close - 1] : '\0';
    skip(close - at_);
    end_tag(2, sign);
  }

  // Matches "{% NAME %}" at `begin` + `opening`; gives the offset of its "%}" or npos, and the closing sign.
  std::size_t simple_tag(std::size_t begin, std::string_view name, char& sign) const {
    const std::string_view source = source_;
    std::size_t i = source.find_first_not_of(kBlanks, begin);
    if (i == source.npos || source.substr(i, name.size()) != name) return source.npos;
    i = source.find_first_not_of(kBlanks, i + name.size());
    if (i == source.npos) return source.npos;
    sign = source[i] == '-' || source[i] == '+' ? source[i] : '\0';
    if (sign != '\0') ++i;
    return source.substr(i, 2) == "%}" ? i : source.npos;
  }

  bool raw_tag(std::size_t opening) {
    char sign = '\0';
    const std::size_t close = simple_tag(at_ + opening, "raw", sign);
    if (close == source_.npos) return false;
    skip(close + 2 - at_);
    if (sign == '-') skip_blanks();
    for (std::size_t open = at_;; ++open) {
      open = source_.find("{%", open);
      if (open == source_.npos) fail("a raw block is not closed by \"{% endraw %}\"");
      const char next = open + 2 < source_.size() ? source_[open + 2] : '\0';
      const char begin_sign = next == '-' || next == '+' ? next : '\0';
      char end_sign = '\0';
      const std::size_t end = simple_tag(open + (begin_sign == '\0' ? 2 : 3), "endraw", end_sign);
      if (end == source_.npos) continue;
      add_data(open, begin_sign, true);
      skip(end - at_);
      end_tag(2, end_sign);
      return true;
    }
  }

  void tag(bool print) {
    const std::string_view closing = print ? "}}" : "%}";
    std::string open_brackets;
    for (int count = 0;; ++count) {
      skip_blanks();
      if (at_ >= source_.size()) fail("the template ends inside a tag");
      if (count > kMaxTagTokens) fail("a tag has more than 4096 tokens");
      if (open_brackets.empty()) {
        const char sign =
            (peek() == '-' || (peek() == '+' && !print)) && peek(1) == closing[0] && peek(2) == closing[1]
                ? peek()
                : '\0';
        if (sign != '\0') skip(1);
        if (sign != '\0' || ahead(closing)) {
          add(print ? Kind::print_end : Kind::block_end, {});
          if (print) {
            skip(2);
            if (sign == '-') skip_blanks();
          } else {
            end_tag(2, sign);
          }
          return;
        }
      }
      token(open_brackets);
    }
  }

  void token(std::string& open_brackets) {
    const char c = peek();
    if (c == '"' || c == '\'') return string(c);
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      std::size_t length = 1;
      while (is_name_start(peek(length)) || is_digit(peek(length))) ++length;
      add(Kind::name, source_.substr(at_, length));
      return skip(length);
    }
    for (std::string_view op : kOperators) {
      if (!ahead(op)) continue;
      if (op == "(" || op == "[" || op == "{") open_brackets += op[0] == '(' ? ')' : op[0] == '[' ? ']' : '}';
      if (op == ")" || op == "]" || op == "}") {
        if (open_brackets.empty() || open_brackets.back() != op[0])
          fail("unexpected \"" + std::string(op) + "\"");
        open_brackets.pop_back();
      }
      add(Kind::op, std::string(op));
      return skip(op.size());
    }
    fail("unexpected character \"" + source_.substr(at_, utf8::decode(source_, at_).bytes) + "\"");
  }

  void number() {
    std::string digits;
    int base = 10;
    if (peek() == '0') {
      const char mark = static_cast<char>(peek(1) | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    }
    if (base != 10) skip(2);
    auto take_digits = [&] {
      while (is_digit(peek()) || peek() == '_' ||
             (base == 16 && ((peek() | 0x20) >= 'a' && (peek() | 0x20) <= 'f'))) {
        if (peek() != '_') digits += peek();
        skip(1);
      }
    };
    take_digits();
    bool floating = false;
    if (base == 10 && peek() == '.' && is_digit(peek(1))) {
      floating = true;
      digits += '.';
      skip(1);
      take_digits();
    }
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if (base == 10 && (peek() | 0x20) == 'e' && is_digit(peek(1 + sign))) {
      floating = true;
      digits += 'e';
      if (sign != 0) digits += peek(1);
      skip(1 + sign);
      take_digits();
    }
    add(floating ? Kind::floating : Kind::integer, digits);
    Token& token = tokens_.back();
    const char* end = digits.data() + digits.size();
    const auto parsed = floating ? std::from_chars(digits.data(), end, token.floating)
                                 : std::from_chars(digits.data(), end, token.integer, base);
    if (parsed.ec != std::errc() || parsed.ptr != end) fail("the number " + digits + " is not in range");
  }

  void string(char quote) {
    const int first_line = line_;
    std::string value;
    skip(1);
    while (peek() != quote || at_ >= source_.size()) {
      if (at_ >= source_.size()) throw Error("a string is not closed", first_line);
      if (peek() == '\\') {
        escape(value);
      } else {
        value += peek();
        skip(1);
      }
    }
    skip(1);
    add(Kind::string, std::move(value));
  }

  void escape(std::string& value) {
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = peek(1);
    if (c == '\n') return skip(2);  // a continued line
    if (const std::size_t known = kNames.find(c); known != kNames.npos) {
      value += kValues[known];
      return skip(2);
    }
    const std::size_t hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const bool octal = c >= '0' && c <= '7';
    if (hex == 0 && !octal) {  // an unknown escape stands for itself
      value += '\\';
      return skip(1);
    }
    const char* first = source_.data() + at_ + (octal ? 1 : 2);
    const char* limit = std::min<const char*>(first + (octal ? 3 : hex), source_.data() + source_.size());
    std::uint32_t point = 0;
    const auto parsed = std::from_chars(first, limit, point, octal ? 8 : 16);
    if (!octal && parsed.ptr != first + hex) fail("a \\x, \\u or \\U escape has too few hexadecimal digits");
    if (point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) fail("an escape is not a character");
    utf8::append(value, point);
    skip(static_cast<std::size_t>(parsed.ptr - (source_.data() + at_)));
  }

  const std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // whether what was consumed last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace troupe::jinja
