#include "text/template/jinja/text_operations.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"
#include "text/template/jinja/unicode.h"

namespace troupe::jinja {
namespace {

// Start of the character that ends at `end`.
std::size_t previous(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

// True for the characters at which Python's splitlines() cuts.
bool ends_line(char32_t point) {
  return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

// Knuth, Morris and Pratt: the distance of the first `what` from the beginning of `text`, npos when there is
// none.
template <class Iterator>
std::size_t search(Iterator text, std::size_t text_size, Iterator what, std::size_t size) {
  std::vector<std::uint32_t> overlap(size, 0);  // of what[0, i]: the longest proper prefix that is a suffix
  const auto advance = [&](std::uint32_t matched, char byte) {
    while (matched > 0 && what[matched] != byte) matched = overlap[matched - 1];
    return what[matched] == byte ? matched + 1 : matched;
  };
  for (std::size_t i = 1; i < size; ++i) overlap[i] = advance(overlap[i - 1], what[i]);
  std::uint32_t matched = 0;
  for (std::size_t i = 0; i < text_size; ++i) {
    matched = advance(matched, text[i]);
    if (matched == size) return i + 1 - size;
  }
  return std::string_view::npos;
}

constexpr std::size_t kShort = 8;  // the library's search costs at most so many comparisons a byte

}  // namespace

std::size_t find_first(std::string_view text, std::string_view what, std::size_t from) {
  if (what.size() <= kShort) return text.find(what, from);
  if (from > text.size() || what.size() > text.size() - from) return text.npos;
  const std::size_t at = search(text.begin() + from, text.size() - from, what.begin(), what.size());
  return at == text.npos ? at : from + at;
}

std::size_t find_last(std::string_view text, std::string_view what) {
  if (what.size() <= kShort) return text.rfind(what);
  if (what.size() > text.size()) return text.npos;
  const std::size_t from_end = search(text.rbegin(), text.size(), what.rbegin(), what.size());
  return from_end == text.npos ? from_end : text.size() - from_end - what.size();
}

Text strip(Rendering& rendering, const Text& text, const Text* set, bool left, bool right) {
  const std::string_view view = text.view();
  rendering.budget.touch(view.size());
  std::size_t tried = 0;
  auto strippable = [&](std::size_t at) {
    if (++tried % 16 == 0) rendering.budget.step();
    if (set) rendering.budget.touch(set->size());
    const utf8::Step step = utf8::decode(view, at);
    if (!set) return utf8::is_space(step.point);
    return set->view().find(view.substr(at, step.bytes)) != std::string_view::npos;
  };
  std::size_t begin = 0;
  std::size_t end = view.size();
  while (left && begin < end && strippable(begin)) begin += utf8::decode(view, begin).bytes;
  while (right && end > begin && strippable(previous(view, end))) end = previous(view, end);
  return text.slice(begin, end);
}

std::vector<Value> split(Rendering& rendering, const Text& text, const Text* separator, std::int64_t limit,
                         bool from_right) {
  const std::string_view view = text.view();
  if (separator && separator->empty()) throw Error("empty separator");
  rendering.budget.touch(view.size());
  // The places where the text is cut: [first, second) of each separator.
  std::vector<std::pair<std::size_t, std::size_t>> cuts;
  if (separator) {
    const std::size_t size = separator->size();
    if (from_right) {
      std::size_t end = view.size();
      for (std::size_t at;
           end >= size && (at = find_last(view.substr(0, end), separator->view())) != view.npos; end = at) {
        cuts.emplace_back(at, at + size);
        if (limit >= 0 && static_cast<std::int64_t>(cuts.size()) == limit) break;
      }
      if (limit == 0) cuts.clear();
      std::reverse(cuts.begin(), cuts.end());
    } else {
      for (std::size_t at = find_first(view, separator->view()); at != view.npos;
           at = find_first(view, separator->view(), at + size)) {
        if (limit >= 0 && static_cast<std::int64_t>(cuts.size()) >= limit) break;
        cuts.emplace_back(at, at + size);
      }
    }
  } else {
    for (std::size_t at = 0; at < view.size();) {
      const utf8::Step step = utf8::decode(view, at);
      if (utf8::is_space(step.point)) {
        if (!cuts.empty() && cuts.back().second == at) {
          cuts.back().second += step.bytes;
        } else {
          cuts.emplace_back(at, at + step.bytes);
        }
      }
      at += step.bytes;
    }
  }
  rendering.budget.step(static_cast<std::int64_t>(cuts.size()));

  std::size_t begin = 0;
  std::size_t end = view.size();
  if (!separator) {
    // Whitespace at the ends separates nothing; where `limit` ends the splitting it is kept.
    auto drop_leading = [&] {
      if (cuts.empty() || cuts.front().first != 0) return;
      begin = cuts.front().second;
      cuts.erase(cuts.begin());
    };
    auto drop_trailing = [&] {
      if (cuts.empty() || cuts.back().second != view.size()) return;
      end = cuts.back().first;
      cuts.pop_back();
    };
    from_right ? drop_trailing() : drop_leading();
    if (begin >= end) return {};
    if (limit < 0 || limit >= static_cast<std::int64_t>(cuts.size())) {
      from_right ? drop_leading() : drop_trailing();
    } else if (from_right) {
      cuts.erase(cuts.begin(), cuts.end() - limit);
    } else {
      cuts.resize(static_cast<std::size_t>(limit));
    }
  }
  std::vector<Value> out;
  for (const auto& [cut_begin, cut_end] : cuts) {
    out.push_back(rendering.make(text.slice(begin, cut_begin)));
    begin = cut_end;
  }
  out.push_back(rendering.make(text.slice(begin, end)));
  return out;
}

std::vector<Value> split_lines(Rendering& rendering, const Text& text, bool keep_ends) {
  const std::string_view view = text.view();
  std::vector<Value> out;
  for (std::size_t begin = 0; begin < view.size();) {
    std::size_t end = begin;
    std::size_t next = begin;  // after the line end
    while (end == next && end < view.size()) {
      const utf8::Step step = utf8::decode(view, end);
      next += static_cast<std::size_t>(view.substr(end, 2) == "\r\n" ? 2 : step.bytes);
      if (!ends_line(step.point)) end = next;
    }
    rendering.budget.step(static_cast<std::int64_t>((next - begin) / 64 + 1));
    out.push_back(rendering.make(text.slice(begin, keep_ends ? next : end)));
    begin = next;
  }
  return out;
}

Text replace(Rendering& rendering, const Text& text, const Text& from, const Text& to, std::int64_t limit) {
  const std::string_view view = text.view();
  Text out;
  std::size_t begin = 0;
  rendering.budget.touch(view.size());
  auto put = [&](std::size_t end) {
    rendering.budget.step();
    rendering.budget.made(static_cast<std::int64_t>(to.footprint()));
    rendering.budget.touch(to.size());
    out.append(text.slice(begin, end));
    out.append(to);
    begin = end;
  };
  if (from.empty()) {  // between all characters, as Python does
    for (std::size_t at = 0; limit != 0; --limit) {
      put(at);
      if (at == view.size()) break;
      at += utf8::decode(view, at).bytes;
    }
  } else {
    for (std::size_t at; limit != 0 && (at = find_first(view, from.view(), begin)) != view.npos; --limit) {
      put(at);
      begin += from.size();
    }
  }
  out.append(text.slice(begin, view.size()));
  return out;
}

Text upper(const Text& text) { return unicode::map(text, unicode::upper); }
Text lower(const Text& text) { return unicode::map(text, unicode::lower); }

Text capitalize(const Text& text) {
  bool first = true;
  return unicode::map(text, [&](char32_t point) {
    return std::exchange(first, false) ? unicode::upper(point) : unicode::lower(point);
  });
}

}  // namespace troupe::jinja
