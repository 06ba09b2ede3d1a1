#pragma once
// The parts of a long answer, written in slices: an answer with a million scores takes a second to write, and
// no turn of an actor may last that long.
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "actors/session/slice.h"
#include "http/api/openai_logprobs.h"

namespace troupe {

/// The scores of one prompt as JSON, made once for all its choices.
class PromptScores {
 public:
  explicit PromptScores(std::vector<http::TokenLogprob>&& scores) : scores_(std::move(scores)) {}

  /// Makes more of a list; true when all of it is there.
  bool make(http::ScoreList list, const Slice& slice);
  /// The list without its brackets, once make() has returned true.
  const std::string& text(http::ScoreList list) const { return made_[static_cast<std::size_t>(list)].json; }
  /// Makes the whole form of completions, for an echo that is streamed.
  bool make_echo(const Slice& slice);
  const std::string& echo() const { return echo_; }
  /// Code points of the prompt, once the offsets are there.
  std::int64_t chars() const { return made_[static_cast<std::size_t>(http::ScoreList::text_offset)].offset; }

 private:
  struct Made {
    std::string json;
    std::size_t scores = 0;  // of which it is
    std::int64_t offset = 0;
  };
  std::vector<http::TokenLogprob> scores_;
  std::array<Made, 6> made_;  // by list
  std::string echo_;
};

/// Texts and lists of scores of an answer, in the order in which they are written.
class AnswerChunks {
 public:
  bool empty() const { return parts_.empty(); }

  void text(std::string text) { parts_.push_back(std::move(text)); }
  /// A list of a prompt; it outlives this object.
  void prompt(PromptScores& scores, http::ScoreList list) { parts_.push_back(OfPrompt{&scores, list}); }
  /// A list of an output's scores, behind those of `before` when that is not null; both outlive this object.
  /// Offsets go on where those of the prompt end.
  void scores(std::span<const http::TokenLogprob> scores, http::ScoreList list, const PromptScores* before) {
    parts_.push_back(OfOutput{scores, list, before});
  }

  /// Appends until nothing is left, which is true, or the slice is over.
  bool write(std::string& out, const Slice& slice);

 private:
  struct OfPrompt {
    PromptScores* scores;
    http::ScoreList list;
    std::size_t copied = 0;
  };
  struct OfOutput {
    std::span<const http::TokenLogprob> scores;
    http::ScoreList list;
    const PromptScores* before;
    std::size_t written = 0;
    std::int64_t offset = 0;
  };
  bool write_part(std::string& out, std::string& text, const Slice& slice);
  bool write_part(std::string& out, OfPrompt& part, const Slice& slice);
  bool write_part(std::string& out, OfOutput& part, const Slice& slice);

  std::deque<std::variant<std::string, OfPrompt, OfOutput>> parts_;
};

}  // namespace troupe
