#pragma once
#include "actors/protocol.h"
#include "actors/tokenizer/encoder.h"
#include "base/log.h"

namespace troupe {

struct TokenizerState {
  static inline const char* name = "tokenizer";
};

/// TOKENIZER. Stateless: a restart loses the requests in its mailbox and nothing else.
tokenizer_actor::behavior_type tokenizer_behavior(tokenizer_actor::stateful_pointer<TokenizerState> self,
                                                  Encoder encoder, Log log);

}  // namespace troupe
