#pragma once
// From a request's prompts, as token ids, to the sequences that the SCHEDULER runs. What this model cannot
// run is refused here. Pure functions; `ask` is the request they are about.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "text/parsers/answer_syntax.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// How large one answer may be.
struct AnswerBounds {
  std::int64_t scores = 1'000'000;  ///< log-probabilities
  std::int64_t answer_bytes =
      64 << 20;  ///< of one that is not streamed, and of what one repeats of its prompts
};

/// What all sessions share; immutable.
struct SessionContext {
  std::shared_ptr<const TokenTexts> texts;
  std::vector<TokenId> eos_ids;    ///< end the answer unless ignore_eos
  std::int32_t max_model_len = 0;  ///< prompt and answer together
  std::int32_t vocab_size = 0;     ///< of the model; ids at or above are refused
  AnswerSyntax syntax;             ///< of chat answers; completions are text alone
  AnswerBounds bounds = {};
  std::int64_t logged_bytes = 0;  ///< of each text of an answer that are kept for the log; 0: none
  bool speculates = false;        ///< the model verifies draft tokens, and those of predictions
  bool embeds = false;            ///< the model was trained for embeddings of its last token
};

/// One of a request's prompts: what is submitted of it, again after an engine has ended, and what the answer
/// shows of it.
struct SessionPrompt {
  std::int32_t tokens = 0;
  std::string text;          ///< set with echo
  std::int64_t chars = 0;    ///< code points of `text`
  std::vector<TokenId> ids;  ///< not empty
  std::vector<SequenceItem> media;
  bool shows_ids = false;  ///< return_token_ids

  /// Empty when the answer does not show them.
  std::span<const TokenId> shown_ids() const {
    return shows_ids ? std::span<const TokenId>(ids) : std::span<const TokenId>();
  }
};

/// The field of the request that its conversation came from, for errors.
const char* conversation_field(const Ask& ask);

/// The field of the request that prompt `i` of `count` came from, for errors.
std::string prompt_field(const Ask& ask, std::size_t i, std::size_t count);

/// Sequences of each prompt: n, or best_of when that is more.
std::int32_t candidates(const Generation& generation);

/// How many tokens of each prompt's end are kept at most.
std::int64_t kept_tokens(const SessionContext& context, const Ask& ask);

/// Leaves out what Ask::source.keep_tokens does not keep of each prompt's beginning.
void truncate_prompts(const SessionContext& context, const Ask& ask,
                      std::vector<std::vector<TokenId>>& prompts);

/// ok when the model can run every prompt: not empty, ids within the vocabulary, room for the answer. `media`
/// are the items of the first.
Status check_prompts(const SessionContext& context, const Ask& ask,
                     const std::vector<std::vector<TokenId>>& prompts,
                     const std::vector<MediaItem>& media = {});

/// True when the items have these sizes, in order, and lie in a prompt of so many tokens one behind the
/// other.
bool are_placed(const std::vector<MediaItem>& items, const std::vector<MediaGrid>& sizes,
                std::size_t prompt_tokens);

/// A prediction that a model can verify: as many of its tokens as one sequence can have, or none if it has
/// ids beyond the vocabulary.
std::vector<TokenId> usable_prediction(const SessionContext& context, std::vector<TokenId>&& ids);

/// A prompt of the request; `text` as TOKENIZER gave it, empty without echo. `ids` is not empty.
SessionPrompt describe_prompt(const Ask& ask, std::vector<TokenId>&& ids, PromptText&& text);

/// Holds the answer to its bounds: invalid_argument when its scores or what it repeats of its prompts exceed
/// them. A request with scores and without max_tokens gets as many tokens as they allow.
Status bound_answer(const SessionContext& context, Ask& ask, const std::vector<SessionPrompt>& prompts);

/// How the answer to a prompt begins.
struct AnswerOpening {
  AnswerStart start = AnswerStart::answer;
  Thinking thinking;
};

/// That of a chat's: where it begins, the tag that ends its thoughts, whether they are open, their limit,
/// what ends them there and, with a form, what may not come in them.
AnswerOpening begin_answer(const SessionContext& context, const std::vector<TokenId>& prompt,
                           const Generation& generation);

/// A source of keys that never repeat: 128 random bits drawn once, then counted.
class KeySource {
 public:
  KeySource();
  explicit KeySource(RequestKey first) : next_(first) {}
  RequestKey operator()() {
    ++next_.lo;
    return next_;
  }

 private:
  RequestKey next_;
};

/// A Submit of the request, without sequences.
Submit make_submit(const Ask& ask);

/// Sequence `candidate`, below candidates(), of a prompt of so many tokens, without key, parent and prompt.
/// The same whenever it is called once bound_answer() has completed `ask`.
SequenceSpec make_sequence(const SessionContext& context, const Ask& ask, const Thinking& thinking,
                           std::int32_t prompt_tokens, std::int32_t candidate);

/// Holds the sequences of a request to a grammar of GRAMMAR. The grammar says when an answer may end:
/// min_tokens has no effect on it.
void hold_to_grammar(const Generation& generation, const Thinking& thinking, std::uint64_t grammar,
                     Submit& submit);

}  // namespace troupe
