#pragma once
// From a client's request to the engine's Ask: every default is resolved here, in one place, so that no later
// code meets an unset value. Pure; used by several I/O threads at once.
#include <chrono>
#include <cstdint>
#include <string>

#include "actors/messages.h"
#include "base/status.h"
#include "http/server/backend.h"
#include "model/checkpoint/generation_config.h"
#include "text/parsers/answer_syntax.h"
#include "text/template/chat_template.h"

namespace troupe {

/// What of its chat_template_kwargs a chat template reads to turn thoughts on and off.
enum class ThinkingSwitch : std::uint8_t {
  none,
  enable_thinking,  ///< true, false
  options,          ///< options.thinking_mode: "open", "close"
};

/// The switch of a chat template; null: there is no template.
ThinkingSwitch thinking_switch(const ChatTemplate* chat);

struct ResolverOptions {
  std::string served_name;             ///< the model in answers when the request names none
  model::GenerationConfig generation;  ///< of the checkpoint
  std::uint64_t seed = 0;              ///< 0: requests without a seed draw one of their own
  AnswerSyntax syntax;                 ///< of chat answers
  ThinkingSwitch thinking_switch = ThinkingSwitch::none;
  bool enforces_forms = true;          ///< false: no answer can be held to a form, and no thoughts to a limit
  bool template_reads_tools = true;    ///< false: the chat template would leave a request's tools out
  std::chrono::seconds timeout{3600};  ///< of a request that names no shorter one
};

class RequestResolver {
 public:
  explicit RequestResolver(ResolverOptions options) : options_(std::move(options)) {}

  /// Moves prompts and conversation out of `call`. `random` is the seed of a request that names none. A
  /// combination that cannot be served is invalid_argument. `call` is no InfoRequest.
  Result<Ask> resolve(http::Call& call, std::uint64_t random, std::int64_t unix_s) const;

 private:
  Generation generation(const http::SamplingRequest& wanted, std::uint64_t random) const;
  Status chat(http::ChatRequest& request, std::uint64_t random, Ask& ask) const;
  Status tools(http::ChatRequest& request, Ask& ask) const;
  Status thinking(const http::ThinkingRules& rules, http::Conversation& conversation,
                  Generation& generation) const;
  void switch_thinking(http::Conversation& conversation, bool on) const;
  void completion(http::CompletionRequest& request, std::uint64_t random, Ask& ask) const;
  Answer answer(const std::string& id, const std::string& model, const http::SamplingRequest& wanted,
                std::int64_t unix_s) const;

  ResolverOptions options_;
};

}  // namespace troupe
