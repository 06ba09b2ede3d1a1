#include "gpu/cuda.h"
#include "model/cuda/executor.h"

namespace troupe::model {

Result<std::unique_ptr<Executor>> make_cuda_executor(const ModelFiles&, const config::Options&,
                                                     const LoadProgress&, const RankPlace&) {
  return cuda_usable();
}

std::uint64_t peer_exchange_bytes(int) { return 0; }

}  // namespace troupe::model
