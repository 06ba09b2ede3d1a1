#include "actors/tokenizer/tokenizer_actor.h"

#include <utility>

#include "base/clock.h"
#include "base/give_way.h"

namespace troupe {
namespace {

/// The text of a prompt as the model gets it, at least `bytes` of it if it is that long.
std::string text_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < ids.size() && text.size() <= bytes; ++i) {
    text += ids[i] < tokenizer.vocab_size() ? std::string(tokenizer.token_bytes(ids[i])) : "<" + std::to_string(ids[i]) + ">";
  }
  return text;
}

Encoded encode(const Encoder& encoder, const Log& log, Encode& job) {
  const std::int64_t start = now_ns();
  const std::string request_id = job.request_id;
  Encoded out = encoder.encode(std::move(job));
  std::size_t tokens = 0;
  for (const auto& prompt : out.prompts) tokens += prompt.size();
  const double ms = static_cast<double>(now_ns() - start) * 1e-6;
  if (log.details(3)) {
    for (const auto& prompt : out.prompts) {
      log.detail("prompt", {kv("req", request_id), kv("text", text_of(*encoder.tokenizer(), prompt, log.max_value_bytes()))});
    }
  }
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
