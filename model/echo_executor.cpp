#include "model/echo_executor.h"

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
  void run(const StepBatch& batch, std::span<kernels::SampleResult> scores) override {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = certain(batch.scores[i].token, batch.scores[i].logprobs);
    }
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
  }

  void copy(std::span<const kernels::BlockPair>) override {}
};

}  // namespace

std::unique_ptr<Executor> make_echo_executor(const wire::Capacity& capacity) {
  return std::make_unique<EchoExecutor>(capacity);
}

}  // namespace troupe::model
