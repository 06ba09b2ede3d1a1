#include "actors/tokenizer/tokenizer_actor.h"

#include <utility>

#include "base/clock.h"
#include "base/contain.h"
#include "base/thread_priority.h"
#include "text/detokenizer.h"

namespace troupe {
namespace {

/// The text of each prompt as the model sees it, with the special tokens of its template.
void log_prompts(const Encoder& encoder, const Log& log, const std::string& request_id,
                 const Encoded& encoded) {
  for (std::size_t i = 0; i < encoded.prompts.size(); ++i) {
    Detokenizer detokenizer(encoder.tokenizer(), /*skip_special_tokens=*/false);
    std::string text;
    for (const TokenId id : encoded.prompts[i]) {
      if (static_cast<std::int64_t>(text.size()) > log.max_value_bytes())
        break;  // the log cuts it and says so
      text += detokenizer.append(id);
    }
    log.detail("prompt", {kv("req", request_id), kv("prompt", i), kv("text", text + detokenizer.flush())});
  }
}

Encoded encode(const Encoder& encoder, const Log& log, Encode& job) {
  const std::int64_t start = now_ns();
  const std::string request_id = job.request_id;
  Encoded out = encoder.encode(std::move(job), log);
  std::size_t tokens = 0;
  for (const auto& prompt : out.prompts) tokens += prompt.size();
  const double ms = static_cast<double>(now_ns() - start) * 1e-6;
  if (out.status.ok()) {
    log.info("encoded", {kv("req", request_id), kv("prompts", out.prompts.size()), kv("tokens", tokens), kv("ms", ms)});
    if (log.details(3)) {
      (void)contain(log, "log of a prompt", request_id, [&] { log_prompts(encoder, log, request_id, out); });
    }
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
        if (kind == TokenizerKind::long_texts && !std::exchange(self->state.low_priority, true)) lower_thread_priority();
        return encode(encoder, log, job);
      },
  };
}

}  // namespace troupe
