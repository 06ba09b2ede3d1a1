#include "actors/session/submission.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "actors/tokenizer/prompt_length.h"

namespace troupe {
namespace {

/// Tokens that an answer has at least.
std::int64_t least_answer(const Ask& ask) {
  return ask.api == Api::embeddings ? 0 : std::max<std::int64_t>(1, ask.generation.sampling.min_tokens);
}

Status check_prompt(const SessionContext& context, const Ask& ask, const std::string& field,
                    const std::vector<TokenId>& prompt, const std::vector<MediaItem>& media) {
  const bool generates = http::generates(ask.api);
  if (prompt.empty()) {
    if (!generates) return {};
    return invalid(field + " is empty: at least one token is needed", field, "empty_prompt");
  }
  for (const TokenId id : prompt) {  // a tokenizer may have more tokens than the model
    if (id >= 0 && id < context.vocab_size) continue;
    return invalid("token id " + std::to_string(id) + " is outside the vocabulary: allowed are 0 to " +
                       std::to_string(context.vocab_size - 1),
                   field, "token_out_of_range");
  }
  if (!generates) return {};
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  const std::int64_t least = least_answer(ask);
  if (tokens + least <= context.max_model_len) return {};
  if (ask.api == Api::embeddings) {
    return invalid(field + " has " + std::to_string(tokens) + " tokens: allowed are " +
                       std::to_string(context.max_model_len) + " (truncate_prompt_tokens cuts longer ones)",
                   field, "context_length_exceeded");
  }
  std::int64_t of_media = 0;
  for (const MediaItem& item : media) of_media += item.grid.tokens();
  return context_exceeded({context.max_model_len, tokens - of_media, of_media, least}, field);
}

/// The most tokens that an answer to a prompt of so many tokens may have.
std::int32_t output_limit(const SessionContext& context, const Generation& generation,
                          std::int32_t prompt_tokens) {
  const std::int32_t room = context.max_model_len - prompt_tokens;
  return generation.max_tokens < 0 ? room : std::min(std::max(generation.max_tokens, 1), room);
}

/// What ends an answer but may not end its thoughts, whose end is `tag`, if a form is to follow them.
/// Ascending.
std::vector<TokenId> denied_in_thoughts(const SessionContext& context, const Generation& generation,
                                        TokenId tag) {
  if (generation.form.kind == http::AnswerForm::Kind::free) return {};
  std::vector<TokenId> ids = generation.stop_ids;
  ids.insert(ids.end(), context.eos_ids.begin(), context.eos_ids.end());
  std::erase(ids, tag);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

const char* conversation_field(const Ask& ask) { return ask.api == Api::responses ? "input" : "messages"; }

std::string prompt_field(const Ask& ask, std::size_t i, std::size_t count) {
  if (ask.api == Api::embeddings && !ask.answer.embedding.of_messages)
    return count > 1 ? "input." + std::to_string(i) : "input";
  return http::is_chat(ask.api) || ask.api == Api::embeddings ? conversation_field(ask) : "prompt";
}

std::int32_t candidates(const Generation& generation) {
  return std::max(generation.choices, generation.best_of);
}

std::int64_t kept_tokens(const SessionContext& context, const Ask& ask) {
  const std::int64_t asked = ask.source.keep_tokens;
  if (asked == 0) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t room = context.max_model_len - least_answer(ask);
  return std::max<std::int64_t>(asked < 0 ? room : asked, 1);
}

void truncate_prompts(const SessionContext& context, const Ask& ask,
                      std::vector<std::vector<TokenId>>& prompts) {
  const auto kept = static_cast<std::uint64_t>(kept_tokens(context, ask));
  for (auto& prompt : prompts) {
    if (prompt.size() > kept) prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

Status check_prompts(const SessionContext& context, const Ask& ask,
                     const std::vector<std::vector<TokenId>>& prompts, const std::vector<MediaItem>& media) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto& items = i == 0 ? media : std::vector<MediaItem>();
    const std::string field = prompt_field(ask, i, prompts.size());
    if (Status status = check_prompt(context, ask, field, prompts[i], items); !status.ok()) return status;
  }
  return {};
}

bool are_placed(const std::vector<MediaItem>& items, const std::vector<MediaGrid>& sizes,
                std::size_t prompt_tokens) {
  if (items.size() != sizes.size()) return false;
  std::int64_t free = 0;  // the first token that no item has
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind != sizes[i].kind || !(items[i].grid == sizes[i].grid) || items[i].first < free)
      return false;
    free = items[i].first + items[i].grid.tokens();
  }
  return free <= static_cast<std::int64_t>(prompt_tokens);
}

SessionPrompt describe_prompt(const Ask& ask, std::vector<TokenId>&& ids, PromptText&& text) {
  SessionPrompt prompt;
  prompt.tokens = static_cast<std::int32_t>(ids.size());
  prompt.ids = std::move(ids);
  prompt.shows_ids = ask.answer.return_token_ids;
  prompt.text = std::move(text.text);
  prompt.chars = text.chars;
  return prompt;
}

Status bound_answer(const SessionContext& context, Ask& ask, const std::vector<SessionPrompt>& prompts) {
  Generation& generation = ask.generation;
  const wire::Sampling& sampling = generation.sampling;
  const std::int64_t choices = candidates(generation);
  const std::int64_t of_prompt = sampling.prompt_logprobs < 0 ? 0 : sampling.prompt_logprobs + 1;
  const std::int64_t of_output = sampling.logprobs < 0 ? 0 : sampling.logprobs + 1;
  std::int64_t prompt_scores = 0, output_scores = 0, repeated = 0;
  for (const SessionPrompt& prompt : prompts) {
    const bool open = generation.max_tokens < 0;
    const std::int64_t least = std::max<std::int64_t>(1, sampling.min_tokens);
    prompt_scores += choices * prompt.tokens * of_prompt;
    output_scores += choices * of_output * (open ? least : output_limit(context, generation, prompt.tokens));
    // An id has up to 7 characters.
    repeated += choices * static_cast<std::int64_t>(prompt.text.size() + 7 * prompt.shown_ids().size());
  }
  const AnswerBounds& bounds = context.bounds;
  if (prompt_scores + output_scores > bounds.scores) {
    const char* field = http::is_chat(ask.api) && of_output > 0  ? "top_logprobs"
                        : of_prompt > 0 && sampling.logprobs < 0 ? "prompt_logprobs"
                                                                 : "logprobs";
    return invalid("n = " + std::to_string(choices) + " choices of this prompt would have " +
                       std::to_string(prompt_scores + output_scores) + " log-probabilities with " + field +
                       ": allowed are " + std::to_string(bounds.scores) +
                       " (--max-answer-scores): ask for fewer choices, tokens or " + field,
                   field, "too_many_scores");
  }
  if (repeated > bounds.answer_bytes) {
    return invalid("n = " + std::to_string(choices) + " choices would repeat " + std::to_string(repeated) +
                       " bytes of the prompt: allowed are " + std::to_string(bounds.answer_bytes) +
                       " (--max-answer-bytes)",
                   "n", "answer_too_large");
  }
  if (generation.max_tokens < 0 && of_output > 0) {
    const std::int64_t each = choices * of_output * static_cast<std::int64_t>(prompts.size());
    generation.max_tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(context.max_model_len, (bounds.scores - prompt_scores) / each));
  }
  return {};
}

AnswerOpening begin_answer(const SessionContext& context, const std::vector<TokenId>& prompt,
                           const Generation& generation) {
  AnswerOpening opening{context.syntax.start_after(prompt), {}};
  Thinking& thinking = opening.thinking;
  if (opening.start != AnswerStart::thoughts) return opening;
  thinking.open = true;
  thinking.end = context.syntax.token_of(Tag::think_end);
  thinking.forced = context.syntax.forced_end();
  thinking.denied = denied_in_thoughts(context, generation, thinking.end);
  std::erase_if(thinking.forced, [&](TokenId id) {
    return std::binary_search(thinking.denied.begin(), thinking.denied.end(), id);
  });

  const std::int32_t most = output_limit(context, generation, static_cast<std::int32_t>(prompt.size()));
  const double share = generation.limits.thinking_share;
  const std::int32_t asked = generation.limits.thinking;
  const std::int32_t limit = asked >= 0  ? asked
                             : share > 0 ? std::max(1, static_cast<std::int32_t>(share * most))
                                         : -1;
  if (limit < 0 || limit >= most) return opening;
  // The forced tokens before the tag are thoughts too.
  thinking.budget = std::max(0, limit - static_cast<std::int32_t>(thinking.forced.size()) + 1);
  return opening;
}

KeySource::KeySource() {
  std::random_device random;
  const auto word = [&random] { return (std::uint64_t{random()} << 32) | random(); };
  next_ = {word(), word()};
}

std::vector<TokenId> usable_prediction(const SessionContext& context, std::vector<TokenId>&& ids) {
  const auto foreign = [&](TokenId id) { return id < 0 || id >= context.vocab_size; };
  if (!context.speculates || std::ranges::any_of(ids, foreign)) return {};
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(std::max(context.max_model_len, 0))));
  return std::move(ids);
}

SequenceSpec make_sequence(const SessionContext& context, const Ask& ask, const Thinking& thinking,
                           std::int32_t prompt_tokens, std::int32_t candidate) {
  const Generation& generation = ask.generation;
  SequenceSpec sequence;
  sequence.host = ask.io;
  sequence.prompt_tokens = prompt_tokens;
  sequence.max_output_tokens =
      ask.api == Api::embeddings ? 1 : output_limit(context, generation, prompt_tokens);
  if (generation.limits.response > 0 && !thinking.open) {
    sequence.max_output_tokens = std::min(sequence.max_output_tokens, generation.limits.response);
  }
  sequence.sampling = generation.sampling;
  sequence.sampling.choice = static_cast<std::uint32_t>(candidate);
  if (candidate > 0) sequence.sampling.prompt_logprobs = -1;  // the first candidate runs the prompt
  // best_of ranks candidates by the logprobs of their tokens.
  if (candidates(generation) > generation.choices) {
    sequence.sampling.logprobs = std::max(sequence.sampling.logprobs, 0);
  }
  sequence.stop_ids = generation.stop_ids;
  if (!generation.ignore_eos) {
    sequence.stop_ids.insert(sequence.stop_ids.end(), context.eos_ids.begin(), context.eos_ids.end());
  }
  sequence.logit_bias = generation.logit_bias;
  return sequence;
}

Submit make_submit(const Ask& ask) {
  Submit submit;
  submit.request_id = ask.request_id;
  submit.prefix = ask.prefix;
  submit.priority = ask.priority;
  submit.background = ask.background;
  submit.exchange = ask.exchange;
  submit.arrived_ns = ask.arrived_ns;
  return submit;
}

void hold_to_grammar(const Generation& generation, const Thinking& thinking, std::uint64_t grammar,
                     Submit& submit) {
  const bool free = generation.form.kind == http::AnswerForm::Kind::free;
  for (SequenceSpec& sequence : submit.sequences) {
    sequence.grammar = grammar;
    // Without a form only the end of the thoughts is held. With one nothing may end them but their tag.
    sequence.gated_from = free ? std::max(thinking.budget, 0) : 0;
    if (!free) sequence.sampling.min_tokens = 0;
  }
}

}  // namespace troupe
