#include "actors/tokenizer/tokenizer_actor.h"

#include <utility>

#include "base/clock.h"
#include "base/give_way.h"

namespace troupe {
namespace {

Encoded encode(const Encoder& encoder, const Log& log, Encode& job) {
  const std::int64_t start = now_ns();
  const std::string request_id = job.request_id;
  Encoded out = encoder.encode(std::move(job));
  std::size_t tokens = 0;
  for (const auto& prompt : out.prompts) tokens += prompt.size();
  const double ms = static_cast<double>(now_ns() - start) * 1e-6;
  if (out.status.ok()) {
    log.info("encoded", {kv("req", request_id), kv("prompts", out.prompts.size()), kv("tokens", tokens), kv("ms", ms)});
  } else {
    log.info("refused", {kv("req", request_id), kv("why", out.status.message), kv("ms", ms)});
  }
  return out;
}

}  // namespace

tokenizer_actor::behavior_type tokenizer_behavior(tokenizer_actor::stateful_pointer<TokenizerState> self, Encoder encoder,
                                                  TokenizerKind kind, Log log) {
  answer_probes(self);
  return {
      answer_beat,
      [self, encoder, kind, log](Encode& job) {
        // On the actor's own thread, which it has from its first message on.
        if (kind == TokenizerKind::long_texts && !std::exchange(self->state.gives_way, true)) give_way();
        return encode(encoder, log, job);
      },
  };
}

}  // namespace troupe
