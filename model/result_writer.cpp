#include "model/result_writer.h"

namespace troupe::model {

void ResultWriter::step(std::uint64_t step, const StepBatch& batch,
                        std::span<const kernels::SampleResult> samples,
                        std::span<const kernels::SampleResult> scores, std::int64_t started_ns,
                        std::int64_t finished_ns, std::vector<std::byte>& out) {
  step_.begin(0);
  rows_.clear();
  tokens_.clear();
  logprobs_.clear();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].error == kernels::SampleError::none) {
      add_logprobs(batch.scored[i].slot, batch.scored[i].position, scores[i]);
    }
  }
  for (const SamplingOutcome& outcome : batch.outcomes) {
    wire::ResultRow row{outcome.slot, static_cast<std::int32_t>(tokens_.size()), 0, wire::RowError::none, 0};
    if (outcome.sample < 0) {
      row.error = wire::RowError::no_such_slot;
    } else {
      const auto index = static_cast<std::size_t>(outcome.sample);
      const kernels::SampleResult& result = samples[index];
      if (result.error != kernels::SampleError::none) {
        row.error = wire::RowError::not_finite;
      } else {
        row.count = 1;
        tokens_.push_back(result.token);
        if (batch.samples[index].logprobs >= 0) add_logprobs(outcome.slot, outcome.position, result);
      }
    }
    rows_.push_back(row);
  }
  const wire::Span<wire::ResultRow> rows = step_.array(rows_);
  const wire::Span<TokenId> tokens = step_.array(tokens_);
  const wire::Span<wire::TokenLogprobs> logprobs = step_.array(logprobs_);
  wire::StepResult& record = step_.record();
  record.step = step;
  record.started_ns = started_ns;
  record.finished_ns = finished_ns;
  record.rows = rows;
  record.tokens = tokens;
  record.logprobs = logprobs;
  const std::span<const std::byte> bytes = step_.finish();
  out.assign(bytes.begin(), bytes.end());
}

void ResultWriter::add_logprobs(SlotRef slot, std::int32_t position, const kernels::SampleResult& result) {
  top_.clear();
  for (std::int32_t i = 0; i < result.top_count; ++i)
    top_.push_back({result.top[i].token, result.top[i].logprob});
  const wire::Span<wire::Logprob> top = step_.array(top_);
  logprobs_.push_back({slot, position, {result.token, result.logprob}, top});
}

void ResultWriter::media_done(const EndedEncoding& ended, std::vector<std::byte>& out) {
  encoded_.begin(0);
  wire::MediaDone& record = encoded_.record();
  record.slot = ended.slot;
  record.item = ended.item;
  record.dropped = ended.dropped ? 1 : 0;
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
