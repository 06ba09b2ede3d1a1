#include "actors/session/answer_chunks.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

// Between two looks at the clock. A score may have a whole vocabulary of entries.
constexpr std::size_t kScores = 16, kEntries = 400;
constexpr std::size_t kCopyBytes = 128 << 10;  // likewise

/// How many of the scores to write before the next look; at least one.
std::size_t next_part(std::span<const http::TokenLogprob> scores) {
  std::size_t count = 0, entries = 0;
  while (count < std::min(kScores, scores.size()) && entries < kEntries)
    entries += scores[count++].top.size();
  return count;
}

}  // namespace

bool PromptScores::make(http::ScoreList list, const Slice& slice) {
  Made& made = made_[static_cast<std::size_t>(list)];
  while (made.scores < scores_.size()) {
    if (slice.over()) return false;
    const auto rest = std::span<const http::TokenLogprob>(scores_).subspan(made.scores);
    const std::size_t count = next_part(rest);
    http::append_scores(made.json, list, rest.first(count), made.scores == 0, made.offset);
    made.scores += count;
  }
  return true;
}

bool PromptScores::make_echo(const Slice& slice) {
  using List = http::ScoreList;
  if (!echo_.empty()) return true;
  for (const List list : {List::tokens, List::token_logprobs, List::top_logprobs, List::text_offset}) {
    if (!make(list, slice)) return false;
  }
  echo_ = R"({"tokens":[)" + text(List::tokens) + R"(],"token_logprobs":[)" + text(List::token_logprobs) +
          R"(],"top_logprobs":[)" + text(List::top_logprobs) + R"(],"text_offset":[)" +
          text(List::text_offset) + "]}";
  return true;
}

bool AnswerChunks::write(std::string& out, const Slice& slice) {
  while (!parts_.empty()) {
    const bool done = std::visit([&](auto& part) { return write_part(out, part, slice); }, parts_.front());
    if (!done) return false;
    parts_.pop_front();
  }
  return true;
}

bool AnswerChunks::write_part(std::string& out, std::string& text, const Slice& slice) {
  if (slice.over()) return false;
  out += text;
  return true;
}

bool AnswerChunks::write_part(std::string& out, OfPrompt& part, const Slice& slice) {
  if (!part.scores->make(part.list, slice)) return false;
  const std::string& text = part.scores->text(part.list);
  while (part.copied < text.size()) {
    if (slice.over()) return false;
    const std::size_t bytes = std::min(kCopyBytes, text.size() - part.copied);
    out.append(text, part.copied, bytes);
    part.copied += bytes;
  }
  return true;
}

bool AnswerChunks::write_part(std::string& out, OfOutput& part, const Slice& slice) {
  if (part.written == 0 && part.before != nullptr) part.offset = part.before->chars();
  while (part.written < part.scores.size()) {
    if (slice.over()) return false;
    const std::span<const http::TokenLogprob> rest = part.scores.subspan(part.written);
    const std::size_t count = next_part(rest);
    http::append_scores(out, part.list, rest.first(count), part.written == 0 && part.before == nullptr,
                        part.offset);
    part.written += count;
  }
  return true;
}

}  // namespace troupe
