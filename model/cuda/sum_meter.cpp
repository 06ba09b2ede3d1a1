#include "model/cuda/sum_meter.h"

#include <iterator>
#include <utility>

namespace troupe::model {
namespace {

constexpr int kUntimed = 2, kTimed = 8;  // sums of one size by one way
constexpr std::size_t kMost = kTimedSums[std::size(kTimedSums) - 1];

}  // namespace

SumMeter::SumMeter(Cuda& device) : device_(device), timed_(2 * std::size(kTimedSums)) {
  Result<Buffer<Cuda>> numbers =
      Buffer<Cuda>::make(device, kMost * sizeof(float), "numbers for the measurement of exchanges");
  if (!numbers) throw CudaError(numbers.status().message);
  numbers_ = std::move(*numbers);
}

void SumMeter::begin(const kernels::ExchangeGroup& group) {
  auto* const numbers = static_cast<float*>(numbers_.data());  // zeros, and so are their sums
  kernels::SumOverRanks sum{.group = group, .in = numbers, .out = numbers};
  auto timed = timed_.begin();
  for (const std::size_t count : kTimedSums) {
    sum.count = count;
    for (const std::size_t from : {kernels::kNeverInTwoSteps, std::size_t{0}}) {
      sum.group.two_steps_from = from;
      for (int i = 0; i < kUntimed; ++i) kernels::run(device_, sum);
      timed->begin.record(device_);
      for (int i = 0; i < kTimed; ++i) kernels::run(device_, sum);
      timed->end.record(device_);
      ++timed;
    }
  }
}

bool SumMeter::ended() const { return timed_.back().end.passed(); }

std::vector<SumTimes> SumMeter::times() const {
  std::vector<SumTimes> times;
  auto timed = timed_.begin();
  const auto next = [&] {
    const double milliseconds = timed->end.milliseconds_since(timed->begin);
    ++timed;
    return milliseconds;
  };
  for (const std::size_t count : kTimedSums) {
    SumTimes& one = times.emplace_back();
    one.numbers = count;
    one.one_step = next();
    one.two_steps = next();
  }
  return times;
}

}  // namespace troupe::model
