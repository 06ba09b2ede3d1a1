// CudaSteps: access to what steps leave in pinned memory.
#include <atomic>

#include "model/cuda/steps.h"
#include "model/plan_check.h"

namespace troupe::model {
namespace {

std::size_t elements(int count) { return static_cast<std::size_t>(count); }

}  // namespace

const std::byte* CudaSteps::outcome_at(std::uint64_t step) const {
  return outcomes_.data() + (step - 1) % elements(pieces()) * kernels::outcome_bytes(most_samples(capacity_));
}

const kernels::StepOutcome& CudaSteps::outcome(std::uint64_t step) const {
  return *reinterpret_cast<const kernels::StepOutcome*>(outcome_at(step));
}

bool CudaSteps::finished(std::uint64_t step) const {
  auto& word = const_cast<std::uint64_t&>(outcome(step).step);
  return std::atomic_ref(word).load(std::memory_order_acquire) == step;
}

std::span<const kernels::Sampled> CudaSteps::sampled(std::uint64_t step) const {
  return {reinterpret_cast<const kernels::Sampled*>(outcome_at(step) + kernels::sampled_at()),
          elements(most_samples(capacity_))};
}

std::span<const kernels::SampleResult> CudaSteps::results(std::uint64_t step) const {
  const int samples = most_samples(capacity_);
  const std::byte* at = outcome_at(step) + kernels::results_at(samples);
  return {reinterpret_cast<const kernels::SampleResult*>(at), elements(samples)};
}

std::span<const kernels::Yield> CudaSteps::yields(std::uint64_t step) const {
  const std::byte* at = outcome_at(step) + kernels::yields_at(most_samples(capacity_));
  return {reinterpret_cast<const kernels::Yield*>(at), elements(capacity_.max_slots)};
}

std::span<const kernels::Proposal> CudaSteps::proposals(std::uint64_t step) const {
  const std::byte* at = outcome_at(step) + kernels::proposals_at(most_samples(capacity_));
  return {reinterpret_cast<const kernels::Proposal*>(at), elements(capacity_.max_slots)};
}

std::span<const kernels::SampleResult> CudaSteps::scores(std::uint64_t step) const {
  const std::size_t rows = elements(capacity_.max_tokens_per_step);
  return {
      reinterpret_cast<const kernels::SampleResult*>(scores_.data()) + (step - 1) % elements(pieces()) * rows,
      rows};
}

std::span<const kernels::TopLogprob> CudaSteps::tops(std::uint64_t step) const {
  const std::size_t most = elements(most_tops(capacity_));
  return {reinterpret_cast<const kernels::TopLogprob*>(tops_.data()) + (step - 1) % elements(pieces()) * most,
          most};
}

const std::byte* CudaSteps::embeddings(std::uint64_t step) const {
  return embeddings_.data() +
         (step - 1) % elements(pieces()) * elements(capacity_.max_slots) * decoder_->hidden_bytes();
}

}  // namespace troupe::model
