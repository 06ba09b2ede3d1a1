#include "model/echo_executor.h"

#include "model/drafts/make_drafter.h"
#include "model/queued_executor.h"

namespace troupe::model {
namespace {

kernels::SampleResult certain(TokenId token, std::int32_t logprobs) {
  kernels::SampleResult result{.token = token};
  if (logprobs > 0) {
    result.top_count = 1;
    result.top[0] = {token, 0.0f};
  }
  return result;
}

class EchoExecutor final : public QueuedExecutor {
 public:
  using QueuedExecutor::QueuedExecutor;

  std::string device() const override { return "echo: no model"; }

 private:
  void run(const StepBatch& batch, std::span<kernels::SampleResult> scores,
           std::span<kernels::TopLogprob> tops) override {
    tops_ = tops;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = certain(batch.scores[i].token, batch.scores[i].logprobs);
    }
    for (const kernels::TopRow& row : batch.score_tops)
      fill_tops(row, batch.scores[static_cast<std::size_t>(row.logits_row)].token);
  }

  void sample(const StepBatch& batch, std::span<kernels::SampleResult> samples) override {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const kernels::SampleRow& row = batch.samples[i];
      const auto prompt_tokens = static_cast<std::uint32_t>(row.prompt_tokens);
      TokenId token = row.tokens[row.position % prompt_tokens];
      const auto allowed = [&] { return (row.mask[token / 32] >> token % 32 & 1) != 0; };
      while (row.mask != nullptr && !allowed()) token = (token + 1) % capacity().vocab_size;
      samples[i] = certain(token, row.logprobs);
    }
    for (const kernels::TopRow& row : batch.sample_tops)
      fill_tops(row, samples[static_cast<std::size_t>(row.logits_row)].token);
  }

  void copy(std::span<const kernels::BlockPair>) override {}

  /// The rest of the vocabulary stands behind the certain token, in the order of ids.
  void fill_tops(const kernels::TopRow& row, TokenId token) {
    const auto at = tops_.subspan(static_cast<std::size_t>(row.first), static_cast<std::size_t>(row.count));
    at[0] = {token, 0.0f};
    TokenId id = 0;
    for (kernels::TopLogprob& top : at.subspan(1)) {
      if (id == token) ++id;
      top = {id++, kernels::kBannedLogit};
    }
  }

  std::span<kernels::TopLogprob> tops_;  // of the batch that ran last
};

}  // namespace

std::unique_ptr<Executor> make_echo_executor(const wire::Capacity& capacity,
                                             const config::SpeculationOptions& speculation) {
  return std::make_unique<EchoExecutor>(capacity, nullptr, std::nullopt, 0,
                                        make_drafter(speculation, capacity, nullptr));
}

}  // namespace troupe::model
