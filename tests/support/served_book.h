#pragma once
// A SessionBook whose engine is up and never ends.
#include <unordered_map>
#include <utility>

#include "actors/session/session_book.h"

namespace troupe::testing {

class ServedBook : public SessionBook {
 public:
  ServedBook(std::shared_ptr<const SessionContext> context, KeySource keys)
      : SessionBook(std::move(context), std::move(keys)) {
    Effects none;
    engine_up({0, 1}, 0, none);
  }

  /// Numbers the tokens of each sequence, as SCHEDULER does.
  void take(StepTokens step, std::int64_t now_ns, const Slice& slice, Effects& effects) {
    for (SequenceTokens& sequence : step.sequences) {
      std::int32_t& count = tokens_[sequence.key];
      sequence.position = std::exchange(count, count + sequence.tokens);
    }
    SessionBook::take(step, now_ns, slice, effects);
  }

 private:
  std::unordered_map<RequestKey, std::int32_t> tokens_;
};

}  // namespace troupe::testing
