#include "model/result_writer.h"

#include <algorithm>

namespace troupe::model {

void ResultWriter::step(std::uint64_t step, const StepBatch& batch,
                        std::span<const kernels::SampleResult> samples,
                        std::span<const kernels::SampleResult> scores,
                        std::span<const kernels::TopLogprob> tops, std::int64_t started_ns,
                        std::int64_t finished_ns, std::vector<std::byte>& out,
                        std::span<const float> embeddings) {
  const auto top_of = [tops](const kernels::SampleResult& result, std::int32_t first, std::int32_t wanted) {
    return first < 0 ? std::span(result.top).first(static_cast<std::size_t>(result.top_count))
                     : tops.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(wanted));
  };
  step_.begin(0);
  rows_.clear();
  tokens_.clear();
  logprobs_.clear();
  std::size_t proposed = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].error == kernels::SampleError::none) {
      const ScoreOutcome& scored = batch.scored[i];
      add_logprobs(scored.slot, scored.position, scores[i],
                   top_of(scores[i], scored.first_top, batch.scores[i].logprobs));
    }
  }
  for (std::size_t first = 0; first < batch.outcomes.size();
       first += 1 + static_cast<std::size_t>(batch.outcomes[first].drafts)) {
    const SamplingOutcome& of_row = batch.outcomes[first];
    wire::ResultRow row{.slot = of_row.slot,
                        .first = static_cast<std::int32_t>(tokens_.size()),
                        .drafts = of_row.drafts,
                        .predicted = of_row.predicted ? 1u : 0u};
    if (of_row.sample < 0) {
      if (!of_row.idle) row.error = wire::RowError::no_such_slot;
    } else if (samples[static_cast<std::size_t>(of_row.sample)].error != kernels::SampleError::none) {
      row.error = wire::RowError::not_finite;
    } else {
      row.count = batch.yield(first, samples);
      for (const SamplingOutcome& outcome :
           std::span(batch.outcomes).subspan(first, static_cast<std::size_t>(row.count))) {
        const auto index = static_cast<std::size_t>(outcome.sample);
        const kernels::SampleResult& result = samples[index];
        tokens_.push_back(result.token);
        const std::int32_t wanted = batch.logprobs ? batch.samples[index].logprobs : -1;
        if (wanted >= 0) {
          add_logprobs(outcome.slot, outcome.position, result, top_of(result, outcome.first_top, wanted));
        }
      }
      row.proposed = of_row.proposed;
      const auto drafts = std::span(batch.proposed).subspan(proposed, static_cast<std::size_t>(row.proposed));
      tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
      proposed += drafts.size();
    }
    rows_.push_back(row);
  }
  add_embeddings(batch, embeddings);
  const wire::Span<wire::ResultRow> rows = step_.array(rows_);
  const wire::Span<TokenId> tokens = step_.array(tokens_);
  const wire::Span<wire::TokenLogprobs> logprobs = step_.array(logprobs_);
  const wire::Span<wire::Embedding> embedded = step_.array(embeddings_);
  wire::StepResult& record = step_.record();
  record.step = step;
  record.started_ns = started_ns;
  record.finished_ns = finished_ns;
  record.rows = rows;
  record.tokens = tokens;
  record.logprobs = logprobs;
  record.embeddings = embedded;
  const std::span<const std::byte> bytes = step_.finish();
  out.assign(bytes.begin(), bytes.end());
}

void ResultWriter::add_logprobs(SlotRef slot, std::int32_t position, const kernels::SampleResult& result,
                                std::span<const kernels::TopLogprob> top) {
  top_.clear();
  for (const kernels::TopLogprob& one : top) top_.push_back({one.token, one.logprob});
  const wire::Span<wire::Logprob> written = step_.array(top_);
  logprobs_.push_back({slot, position, {result.token, result.logprob}, written});
}

void ResultWriter::add_embeddings(const StepBatch& batch, std::span<const float> embeddings) {
  embeddings_.clear();
  if (embeddings.empty()) return;
  const std::size_t width = embeddings.size() / batch.embeds.size();
  for (const SamplingOutcome& outcome : batch.outcomes) {
    const auto at = std::ranges::find(batch.embeds, outcome.sample);
    if (outcome.sample < 0 || at == batch.embeds.end()) continue;
    const auto first = static_cast<std::size_t>(at - batch.embeds.begin()) * width;
    embeddings_.push_back({outcome.slot, step_.array(embeddings.subspan(first, width))});
  }
}

void ResultWriter::media_done(const EndedEncoding& ended, std::vector<std::byte>& out) {
  encoded_.begin(0);
  wire::MediaDone& record = encoded_.record();
  record.slot = ended.slot;
  record.item = ended.item;
  record.dropped = ended.dropped ? 1 : 0;
  record.cached = ended.cached ? 1 : 0;
  record.started_ns = ended.started_ns;
  record.finished_ns = ended.finished_ns;
  const std::span<const std::byte> bytes = encoded_.finish();
  out.assign(bytes.begin(), bytes.end());
}

void ResultWriter::cache_done(const EndedCommand& ended, std::vector<std::byte>& out) {
  done_.begin(0);
  done_.record().id = ended.id;
  done_.record().failed = ended.failed ? 1 : 0;
  done_.record().started_ns = ended.started_ns;
  done_.record().finished_ns = ended.finished_ns;
  const std::span<const std::byte> bytes = done_.finish();
  out.assign(bytes.begin(), bytes.end());
}

}  // namespace troupe::model
