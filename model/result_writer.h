#pragma once
// Writes a step's StepResult record.
#include <cstddef>
#include <span>
#include <vector>

#include "ipc/wire.h"
#include "model/step_batch.h"

namespace troupe::model {

/// The end of a cache command; times from the monotonic clock.
struct EndedCommand {
  std::uint64_t id = 0;
  bool failed = false;
  std::int64_t started_ns = 0;
  std::int64_t finished_ns = 0;
};

/// The end of an EncodeMedia; times as above.
struct EndedEncoding {
  SlotRef slot{};
  std::int32_t item = 0;
  bool dropped = false;
  bool cached = false;
  std::int64_t started_ns = 0;
  std::int64_t finished_ns = 0;
};

/// For one thread. Reuses its memory from record to record.
class ResultWriter {
 public:
  /// Writes the record to `out`. samples[i] is the result of batch.samples[i], scores[i] that of
  /// batch.scores[i], `tops` are those of the batch (StepBatch::tops), `embeddings` those of batch.embeds,
  /// one behind the other. Times are from the monotonic clock.
  void step(std::uint64_t step, const StepBatch& batch, std::span<const kernels::SampleResult> samples,
            std::span<const kernels::SampleResult> scores, std::span<const kernels::TopLogprob> tops,
            std::int64_t started_ns, std::int64_t finished_ns, std::vector<std::byte>& out,
            std::span<const float> embeddings = {});

  /// Writes a MediaDone record to `out`.
  void media_done(const EndedEncoding& ended, std::vector<std::byte>& out);

  /// Writes a CacheDone record for an ended command to `out`.
  void cache_done(const EndedCommand& ended, std::vector<std::byte>& out);

 private:
  void add_logprobs(SlotRef slot, std::int32_t position, const kernels::SampleResult& result,
                    std::span<const kernels::TopLogprob> top);
  void add_embeddings(const StepBatch& batch, std::span<const float> embeddings);

  wire::RecordWriter<wire::StepResult> step_;
  wire::RecordWriter<wire::CacheDone> done_;
  wire::RecordWriter<wire::MediaDone> encoded_;
  std::vector<wire::ResultRow> rows_;
  std::vector<TokenId> tokens_;
  std::vector<wire::TokenLogprobs> logprobs_;
  std::vector<wire::Logprob> top_;
  std::vector<wire::Embedding> embeddings_;
};

}  // namespace troupe::model
