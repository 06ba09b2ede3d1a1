#include "model/card_check/check_lines.h"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::model {
namespace {

constexpr std::array<std::pair<std::string_view, std::size_t>, 5> kEvents{
    {{"begins", 6}, {"right", 2}, {"wrong", 3}, {"unusable", 2}, {"ends", 1}}};

}  // namespace

std::string to_text(const CheckLine& line) {
  std::string text(kEvents[static_cast<std::size_t>(line.event)].first);
  for (const std::string& word : line.words) {
    text += '\t';
    for (const char c : word) text += c == '\t' || c == '\n' ? ' ' : c;
  }
  return text + "\n";
}

std::optional<CheckLine> read_check_line(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\t', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  for (std::size_t event = 0; event < kEvents.size(); ++event) {
    if (words.front() != kEvents[event].first) continue;
    words.erase(words.begin());
    if (words.size() != kEvents[event].second) return std::nullopt;
    return CheckLine{static_cast<CheckEvent>(event), std::move(words)};
  }
  return std::nullopt;
}

}  // namespace troupe::model
