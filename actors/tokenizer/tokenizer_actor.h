#pragma once
// TOKENIZER: the front's end of the link to one text process, which applies templates and encodes. What
// clients have written is worked on there: the death or a hang of that process costs the requests that it had
// only time (text_jobs.h).
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "actors/link/link.h"
#include "actors/protocol.h"
#include "actors/tokenizer/text_jobs.h"
#include "base/log.h"

namespace troupe {

struct TokenizerParts {
  std::shared_ptr<Link> link;  ///< the upper end
  std::uint32_t index = 0;     ///< of the text process
  std::string build;           ///< of this program, for people
  Log log;
  /// The process sends what it should not and has to be replaced; once in an epoch. Called in the receiving
  /// thread; may be empty.
  std::function<void(const std::string& why)> distrusted;
  std::shared_ptr<Pulse> receiver_pulse = std::make_shared<Pulse>();
};

struct TokenizerState {
  static inline const char* name = "tokenizer";
  TokenizerParts parts;
  TextJobs jobs;
  struct Open {
    caf::typed_response_promise<Encoded> promise;
    std::string request_id;
    std::int64_t since_ns = 0;
  };
  std::map<std::uint64_t, Open> open;  ///< by the number of the job
  std::jthread receiver;               ///< ends before the rest of the state
};

/// TOKENIZER ×text process. Tells GATEWAY when the process has come. Every Encode is answered: by the
/// process, or with an error when the process has ended twice at it.
tokenizer_actor::behavior_type tokenizer_behavior(tokenizer_actor::stateful_pointer<TokenizerState> self,
                                                  TokenizerParts parts);

}  // namespace troupe
