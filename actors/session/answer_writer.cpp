#include "actors/session/answer_writer.h"

#include <algorithm>
#include <numeric>

#include "actors/session/choices_writer.h"
#include "actors/session/embeddings_writer.h"
#include "actors/session/messages_writer.h"
#include "actors/session/responses_writer.h"

namespace troupe {

bool AnswerContent::finished() const {
  return std::all_of(sequences.begin(), sequences.end(), [](const auto& s) { return s.choice.finished(); });
}

std::unique_ptr<AnswerWriter> make_answer_writer(const Ask& ask, const TokenTexts& texts) {
  switch (ask.api) {
    case Api::responses: return std::make_unique<ResponsesWriter>(ask);
    case Api::embeddings: return std::make_unique<EmbeddingsWriter>(ask);
    case Api::messages: return std::make_unique<MessagesWriter>(ask);
    default: break;
  }
  return std::make_unique<ChoicesWriter>(ask, texts);
}

bool hides_output(const Ask& ask) { return ask.generation.max_tokens == 0; }

http::Usage usage_of(const Ask& ask, const AnswerContent& content) {
  http::Usage used;
  used.speculates = content.speculates;
  used.has_prediction = ask.answer.has_prediction;
  for (const SessionPrompt& prompt : content.prompts) {
    used.prompt_tokens += prompt.tokens;
    for (const SequenceItem& media : prompt.media) {
      (media.item.kind == MediaKind::image ? used.image_tokens : used.video_tokens) +=
          media.item.grid.tokens();
    }
  }
  std::vector<std::int32_t> cached(content.prompts.size());  // of each prompt's choices, the most
  for (const SessionSequence& sequence : content.sequences) {
    std::int32_t& most = cached[static_cast<std::size_t>(sequence.prompt)];
    most = std::max(most, sequence.choice.cached_tokens());
  }
  used.cached_tokens = std::accumulate(cached.begin(), cached.end(), std::int64_t{0});
  if (hides_output(ask)) return used;
  for (const SessionSequence& sequence : content.sequences) {
    used.completion_tokens += sequence.choice.output_tokens();
    used.reasoning_tokens += sequence.choice.reasoning_tokens();
    const DraftedTokens& drafts = sequence.choice.drafts();
    used.draft_tokens += drafts.verified;
    used.accepted_draft_tokens += drafts.accepted;
    used.accepted_prediction_tokens += drafts.predicted;
    used.rejected_prediction_tokens += drafts.mispredicted;
  }
  return used;
}

}  // namespace troupe
