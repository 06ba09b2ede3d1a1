#include "actors/tokenizer/tokenizer_actor.h"

#include "base/clock.h"

namespace troupe {
namespace {

Encoded encode(const Encoder& encoder, const Log& log, const Encode& job) {
  const std::int64_t start = now_ns();
  Encoded out = encoder.encode(job);
  std::size_t tokens = 0;
  for (const auto& prompt : out.prompts) tokens += prompt.size();
  const double ms = static_cast<double>(now_ns() - start) * 1e-6;
  if (out.status.ok()) {
    log.info("encoded", {kv("req", job.request_id), kv("prompts", out.prompts.size()), kv("tokens", tokens), kv("ms", ms)});
  } else {
    log.info("refused", {kv("req", job.request_id), kv("why", out.status.message), kv("ms", ms)});
  }
  return out;
}

}  // namespace

tokenizer_actor::behavior_type tokenizer_behavior(tokenizer_actor::stateful_pointer<TokenizerState>, Encoder encoder,
                                                  Log log) {
  return {
      [encoder, log](const Encode& job) { return encode(encoder, log, job); },
  };
}

}  // namespace troupe
