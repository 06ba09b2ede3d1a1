#pragma once
// Answers as OpenAI's JSON. Streamed chunks are appended to a string of the caller: what never changes within
// an answer (id, object, created, model) is escaped once into an AnswerFrame, so a token costs one escape of
// its text and a few appends; no JSON value is built.
//
// Text should be whole UTF-8 characters (the detokenizer holds incomplete ones back); bytes that are not
// valid UTF-8 are written as U+FFFD, so that the answer is always valid JSON.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "http/api/api.h"
#include "ipc/wire.h"

namespace troupe::http {

enum class FinishReason : std::uint8_t { none, stop, length, tool_calls, function_call, timeout, abort };

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t reasoning_tokens = 0;       ///< of the completion
  std::int64_t image_tokens = 0;           ///< of the prompt, as are
  std::int64_t video_tokens = 0;           ///< these
  bool speculates = false;                 ///< the next two are shown
  std::int64_t draft_tokens = 0;           ///< that were verified for the completion, and
  std::int64_t accepted_draft_tokens = 0;  ///< those of them that it consists of
  bool has_prediction = false;             ///< the next two are shown
  std::int64_t accepted_prediction_tokens =
      0;  ///< tokens of the request's prediction that were verified: those
  std::int64_t rejected_prediction_tokens = 0;  ///< in the completion, and the others
};

/// A tool call, or the next part of one.
struct ToolCall {
  std::int32_t index = 0;  ///< among the calls of its choice
  std::string id;          ///< "chatcmpl-tool-…"; in the first part of a call, as is the name
  std::string name;
  std::string arguments;  ///< JSON, or a fragment of it
};

/// A token with its natural-log probability. `bytes` are the token's raw bytes and need not be UTF-8; they
/// are the tokenizer's, which outlives the score.
struct TokenScore {
  std::string_view bytes;
  TokenId id = 0;
  float logprob = 0;
};

/// One reported position. `logprob` of the first prompt token of an echo does not exist: known = false.
struct TokenLogprob {
  TokenScore token;
  bool known = true;
  std::vector<TokenScore> top;  ///< most likely first
  bool in_text = true;          ///< false: a special token, which the text leaves out
};

/// The part of every chunk of one answer that never changes. Immutable, so any thread may use it.
class AnswerFrame {
 public:
  AnswerFrame(Api api, std::string_view id, std::string_view model, std::int64_t created_s);

  Api api() const { return api_; }
  const std::string& chunk_prefix() const {
    return chunk_prefix_;
  }  ///< of one SSE frame, up to `"choices":[`
  const std::string& answer_prefix() const { return answer_prefix_; }  ///< of a whole answer, likewise

 private:
  Api api_;
  std::string chunk_prefix_;
  std::string answer_prefix_;
};

/// What is new of one choice since its last chunk. Views have to live until the append returns.
struct Piece {
  std::int32_t index = 0;
  std::string_view text;
  std::string_view reasoning;  ///< chat: reasoning_content, and the same as reasoning; left out when empty
  std::span<const ToolCall> calls;  ///< chat: tool_calls; left out when empty
  bool legacy_calls = false;        ///< chat: `calls` as function_call
  FinishReason finish = FinishReason::none;
  std::span<const TokenLogprob> logprobs;  ///< written when `with_logprobs`
  std::string_view made_logprobs;          ///< the same as JSON; instead of `logprobs` when not empty
  bool with_logprobs = false;
  std::int64_t text_offset =
      0;  ///< completions: text_chars() of this choice's scores before this piece, and its echo
  std::span<const TokenId> token_ids;  ///< return_token_ids: those of this piece; left out when empty
  std::span<const TokenId>
      prompt_token_ids{};        ///< completions: in a choice's first chunk; left out when empty
  const Usage* usage = nullptr;  ///< continuous_usage_stats
};

/// Chat only: the first chunk of a choice, {"role":"assistant","content":""}. `prompt_token_ids` are
/// written when not empty (return_token_ids).
void append_role(std::string& out, const AnswerFrame& frame, std::int32_t index,
                 std::span<const TokenId> prompt_token_ids = {});
void append_piece(std::string& out, const AnswerFrame& frame, const Piece& piece);
/// The chunk with empty choices that stream_options.include_usage asks for.
void append_usage(std::string& out, const AnswerFrame& frame, const Usage& usage);
/// data: [DONE]
void append_done(std::string& out);

/// One choice of an answer that is not streamed.
struct AnswerChoice {
  std::int32_t index = 0;
  std::string text;             ///< completions with echo: the prompt first
  std::string reasoning;        ///< chat; null in the answer when empty
  std::vector<ToolCall> calls;  ///< chat; null in the answer when empty, else `text` is null when it is empty
  bool legacy_calls = false;    ///< chat: the first of `calls` as function_call
  FinishReason finish = FinishReason::none;
  bool with_logprobs = false;
  std::vector<TokenLogprob> logprobs;
  bool with_prompt_logprobs = false;
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<TokenId> prompt_token_ids;  ///< return_token_ids; left out when empty
  std::vector<TokenId> token_ids;         ///< likewise
};

/// A choice up to `"logprobs":`, and from behind its scores on. What stands between them is null, or one of
/// the forms in openai_logprobs.h, and after that perhaps `,"prompt_logprobs":` with its form.
void append_choice_begin(std::string& out, Api api, const AnswerChoice& choice);
void append_choice_end(std::string& out, const AnswerChoice& choice);
/// What ends a whole answer behind its choices.
void append_answer_end(std::string& out, const Usage& usage);

/// A whole chat.completion or text_completion.
std::string format_answer(const AnswerFrame& frame, std::span<const AnswerChoice> choices,
                          const Usage& usage);

struct ModelCard {
  std::string id;    ///< the served name
  std::string root;  ///< the --model string
  std::int64_t created_s = 0;
  std::int64_t max_model_len = 0;
  bool sees = false;          ///< it reads images and videos
  wire::Sampling sampling{};  ///< of a request that says nothing
};

std::string format_models(std::span<const ModelCard> models);
std::string format_model(const ModelCard& model);
/// `token_strs` is written when not empty, and is then as long as `tokens`.
std::string format_tokenized(std::span<const TokenId> tokens, std::int64_t max_model_len,
                             std::span<const std::string> token_strs = {});
std::string format_detokenized(std::string_view text);

}  // namespace troupe::http
