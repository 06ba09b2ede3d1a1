#include "actors/tokenizer/tokenizer_actor.h"

namespace troupe {

tokenizer_actor::behavior_type tokenizer_behavior(tokenizer_actor::stateful_pointer<TokenizerState>, Encoder encoder) {
  return {
      [encoder](const Encode& job) { return encoder.encode(job); },
  };
}

}  // namespace troupe
