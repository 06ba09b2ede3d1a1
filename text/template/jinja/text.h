#pragma once
// A string that knows for each byte whether it is trusted.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_span.h"

namespace troupe::jinja {

/// UTF-8 with a trust mark on every byte. The marks survive every operation: what a template does with a
/// message (concatenate, trim, replace, split, quote as JSON) never turns the client's bytes into trusted
/// ones. Comparison ignores the marks.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), first_trusted_(trusted) {}

  std::string_view view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// Bytes of memory, with the marks.
  std::size_t footprint() const { return bytes_.size() + borders_.size() * sizeof(std::size_t); }

  /// True if no byte is untrusted; an empty text is trusted.
  bool trusted() const { return bytes_.empty() || (first_trusted_ && borders_.empty()); }

  void append(const Text& tail);
  void append(std::string_view tail, bool trusted);

  /// Bytes [begin, end) with their marks; begin <= end <= size().
  Text slice(std::size_t begin, std::size_t end) const;

  /// f(bytes of one trust, trusted) for each run in order.
  template <class F>
  void for_each_run(F&& f) const {
    bool trusted = first_trusted_;
    std::size_t begin = 0;
    for (std::size_t border : borders_) {
      f(view().substr(begin, border - begin), trusted);
      begin = border;
      trusted = !trusted;
    }
    if (begin < bytes_.size()) f(view().substr(begin), trusted);
  }

  std::vector<TextSpan> spans() const;

  friend bool operator==(const Text& a, const Text& b) { return a.bytes_ == b.bytes_; }

 private:
  std::string bytes_;
  bool first_trusted_ = true;
  std::vector<std::size_t> borders_;  // ascending offsets inside the text where the mark flips
};

}  // namespace troupe::jinja
