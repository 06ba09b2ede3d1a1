#include "model/ranks/exchange_way.h"

#include "kernels/exchange.h"

namespace troupe::model {

int gpus_of(const config::ParallelOptions& options) {
  return (options.workers() + options.ranks_per_gpu - 1) / options.ranks_per_gpu;
}

ExchangeWay choose_exchange(const config::ParallelOptions& options,
                            const std::function<bool(int, int)>& reaches) {
  if (options.disable_custom_all_reduce) return {true, "--disable-custom-all-reduce is given"};
  if (options.tensor_parallel_size > kernels::kMostPeers) {
    return {true, "there are more than " + std::to_string(kernels::kMostPeers) + " ranks"};
  }
  for (int from = 0; from < gpus_of(options); ++from) {
    for (int to = 0; to < gpus_of(options); ++to) {
      if (reaches(from, to)) continue;
      return {true, "GPU " + std::to_string(from) + " cannot use the memory of GPU " + std::to_string(to)};
    }
  }
  return {};
}

}  // namespace troupe::model
