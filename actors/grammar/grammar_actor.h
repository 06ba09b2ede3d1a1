#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/grammar/form_service.h"
#include "actors/grammar/grammars.h"
#include "actors/grammar/mask_filler.h"
#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

struct GrammarParts {
  workers_actor link;
  FormServiceSetup forms;
  int vocabulary = 0;             ///< of the model
  std::vector<TokenId> stop_ids;  ///< end an answer that is complete
  unsigned helpers = 1;           ///< threads that make masks; there is one more for those that take long
  Log log;
};

/// How long a step may wait for its masks. They are made while the step's layers run, so half a step's time
/// delays nothing as a rule.
class MaskPace {
 public:
  static constexpr std::int64_t kLeastNs = 2'000'000, kMostNs = 20'000'000;

  /// What a step took; 0: not known.
  void saw(std::int64_t step_ns) {
    if (step_ns > 0) steps_[next_++ % steps_.size()] = step_ns;
  }
  /// Half of the shortest of the last steps: one that waited for masks does not lengthen what the next may
  /// wait.
  std::int64_t patience_ns() const {
    const std::int64_t least =
        *std::min_element(steps_.begin(), steps_.begin() + std::min(next_, steps_.size()) + (next_ == 0));
    return std::clamp(least / 2, kLeastNs, kMostNs);
  }

 private:
  std::array<std::int64_t, 8> steps_{};
  std::size_t next_ = 0;
};

struct GrammarState {
  static inline const char* name = "grammar";
  struct Request {
    caf::typed_response_promise<Compiled> promise;
    std::string request_id;
    grammar::ThinkingRule thinking;
    std::int64_t began_ns = 0;
    std::pair<std::uint32_t, std::uint64_t> exchange;  ///< the request's I/O thread and exchange
    caf::actor_addr asked_by;  ///< its FRONT LINK: each front counts its exchanges from 1 on
  };
  GrammarParts parts;
  std::vector<TokenId> stop_ids;  ///< ascending
  Grammars grammars;
  std::map<std::uint64_t, Request> compiling;     ///< by ticket
  std::map<std::uint64_t, std::string> requests;  ///< by grammar, until it is released or has been lost
  std::uint64_t next_ticket = 1;
  std::size_t failed = 0;  ///< sequences that were given a token which their mask did not allow
  scheduler_actor scheduler;
  MaskPace pace;
  std::unique_ptr<MaskFiller> filler;
  std::unique_ptr<FormService> forms;
};

/// GRAMMAR. actors/grammar/grammars.h decides; a thread of its own runs the actor, since it waits for the
/// masks of a step, for as long as MaskPace says.
grammar_actor::behavior_type grammar_behavior(grammar_actor::stateful_pointer<GrammarState> self,
                                              GrammarParts parts);

}  // namespace troupe
