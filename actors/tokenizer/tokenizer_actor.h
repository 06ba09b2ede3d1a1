#pragma once
#include <cstdint>

#include "actors/protocol.h"
#include "actors/tokenizer/encoder.h"
#include "base/log.h"

namespace troupe {

/// Which requests a TOKENIZER is for.
enum class TokenizerKind : std::uint8_t {
  common,
  long_texts,  ///< its thread has low priority
};

struct TokenizerState {
  static inline const char* name = "tokenizer";
  bool low_priority = false;
};

/// TOKENIZER. Stateless: a restart loses the requests in its mailbox and nothing else.
tokenizer_actor::behavior_type tokenizer_behavior(tokenizer_actor::stateful_pointer<TokenizerState> self,
                                                  Encoder encoder, TokenizerKind kind, Log log);

}  // namespace troupe
