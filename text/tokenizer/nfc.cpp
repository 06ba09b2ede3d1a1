// The algorithm of Unicode Standard Annex 15: decompose fully, sort runs of combining marks by class, compose
// each mark with the last starter unless something between blocks it. Hangul syllables are arithmetic.
#include "text/tokenizer/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/nfc_table.h"

namespace troupe {
namespace {

constexpr char32_t kHangul = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr char32_t kLs = 19, kVs = 21, kTs = 28;

int combining_class(char32_t point) {
  const auto* found =
      std::upper_bound(std::begin(nfc::kCombiningClasses), std::end(nfc::kCombiningClasses), point,
                       [](char32_t p, const nfc::CombiningClass& c) { return p < c.first; });
  if (found == std::begin(nfc::kCombiningClasses)) return 0;
  --found;
  return point <= found->last ? found->value : 0;
}

void decompose(char32_t point, std::vector<char32_t>& out) {
  if (point >= kHangul && point < kHangul + kLs * kVs * kTs) {
    const char32_t index = point - kHangul;
    out.push_back(kL + index / (kVs * kTs));
    out.push_back(kV + index / kTs % kVs);
    if (index % kTs != 0) out.push_back(kT + index % kTs);
    return;
  }
  const auto* found =
      std::lower_bound(std::begin(nfc::kDecompositions), std::end(nfc::kDecompositions), point,
                       [](const nfc::Decomposition& d, char32_t p) { return d.from < p; });
  if (found == std::end(nfc::kDecompositions) || found->from != point) {
    out.push_back(point);
    return;
  }
  decompose(found->first, out);
  if (found->second != 0) decompose(found->second, out);
}

// The character that two form, or 0.
char32_t compose(char32_t a, char32_t b) {
  static const auto pairs = [] {
    std::unordered_map<std::uint64_t, char32_t> map;
    for (const auto& d : nfc::kDecompositions) {
      if (d.composes) map.emplace(std::uint64_t{d.first} << 32 | d.second, d.from);
    }
    return map;
  }();
  if (a >= kL && a < kL + kLs && b >= kV && b < kV + kVs) return kHangul + ((a - kL) * kVs + (b - kV)) * kTs;
  const bool syllable = a >= kHangul && a < kHangul + kLs * kVs * kTs && (a - kHangul) % kTs == 0;
  if (syllable && b > kT && b < kT + kTs) return a + (b - kT);
  const auto found = pairs.find(std::uint64_t{a} << 32 | b);
  return found == pairs.end() ? 0 : found->second;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Nothing below U+0300 composes with its like or decomposes without composing back.
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char byte) { return byte < 0xCC; });
  if (plain) return std::string(text);

  std::vector<char32_t> points;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Step step = utf8::decode(text, at);
    decompose(step.point, points);
    at += static_cast<std::size_t>(step.bytes);
  }
  std::vector<int> classes(points.size());
  std::transform(points.begin(), points.end(), classes.begin(), combining_class);
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin;
    while (end < points.size() && classes[end] != 0) ++end;
    if (end > begin + 1) {
      std::vector<std::pair<int, char32_t>> marks;
      for (std::size_t i = begin; i < end; ++i) marks.emplace_back(classes[i], points[i]);
      std::stable_sort(marks.begin(), marks.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (std::size_t i = begin; i < end; ++i) std::tie(classes[i], points[i]) = marks[i - begin];
    }
    begin = end + 1;
  }

  std::vector<char32_t> composed;
  std::size_t starter = 0;
  bool has_starter = false;
  int last_class = 0;  // of the last mark kept after the starter
  for (std::size_t i = 0; i < points.size(); ++i) {
    const int own = classes[i];
    const bool adjacent = has_starter && starter + 1 == composed.size();
    const bool free = has_starter && (adjacent || (last_class < own && last_class != 0));
    const char32_t joined = free ? compose(composed[starter], points[i]) : 0;
    if (joined != 0) {
      composed[starter] = joined;
      continue;
    }
    if (own == 0) {
      starter = composed.size();
      has_starter = true;
    }
    last_class = own;
    composed.push_back(points[i]);
  }
  std::string out;
  out.reserve(text.size());
  for (char32_t point : composed) utf8::append(out, point);
  return out;
}

}  // namespace troupe
