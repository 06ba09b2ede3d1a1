#pragma once
// By which way ranks on GPUs exchange numbers.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/options.h"

namespace troupe::model {

struct ExchangeWay {
  bool nccl = false;  ///< else through the memory of the other GPUs (kernels/exchange.h)
  std::string why;    ///< of NCCL, as a part of a sentence
};

/// NCCL's memory on a GPU: what it takes for two ranks, and some more.
inline constexpr std::uint64_t kNcclBytes = std::uint64_t{1} << 30;

/// Numbers of the GPUs that the ranks of all engines are on, each once and in rising order.
std::vector<int> gpus_of(const config::ParallelOptions& options);
/// Ranks of all engines on that GPU.
int ranks_on(int gpu, const config::ParallelOptions& options);
/// True if a GPU has several ranks, which then take turns on it.
bool share_gpus(const config::ParallelOptions& options);

/// Through memory, if the GPUs of all ranks reach each other's; NCCL where they do not, where there are more
/// ranks than that way allows, and with --disable-custom-all-reduce. Every rank finds the same.
/// `reaches(from, to)`: of two GPUs.
ExchangeWay choose_exchange(const config::ParallelOptions& options,
                            const std::function<bool(int, int)>& reaches);

}  // namespace troupe::model
