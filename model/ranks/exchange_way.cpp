#include "model/ranks/exchange_way.h"

#include <set>

#include "kernels/exchange.h"

namespace troupe::model {

std::vector<int> gpus_of(const config::ParallelOptions& options) {
  std::set<int> gpus;
  for (int worker = 0; worker < options.workers(); ++worker) gpus.insert(options.gpu_of(worker));
  return {gpus.begin(), gpus.end()};
}

int ranks_on(int gpu, const config::ParallelOptions& options) {
  int found = 0;
  for (int worker = 0; worker < options.workers(); ++worker) found += options.gpu_of(worker) == gpu ? 1 : 0;
  return found;
}

bool share_gpus(const config::ParallelOptions& options) {
  return gpus_of(options).size() < static_cast<std::size_t>(options.workers());
}

ExchangeWay choose_exchange(const config::ParallelOptions& options,
                            const std::function<bool(int, int)>& reaches) {
  if (options.disable_custom_all_reduce) return {true, "--disable-custom-all-reduce is given"};
  if (options.tensor_parallel_size > kernels::kMostPeers) {
    return {true, "there are more than " + std::to_string(kernels::kMostPeers) + " ranks"};
  }
  const std::vector<int> gpus = gpus_of(options);
  for (const int from : gpus) {
    for (const int to : gpus) {
      if (reaches(from, to)) continue;
      return {true, "GPU " + std::to_string(from) + " cannot use the memory of GPU " + std::to_string(to)};
    }
  }
  return {};
}

}  // namespace troupe::model
