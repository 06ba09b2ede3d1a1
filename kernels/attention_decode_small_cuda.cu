// Decode attention: launches of its kernel for items of one token with a small ring.
#include "kernels/cuda/attention/decode_kernel.cuh"
#include "kernels/cuda/attention/working_memory.h"

namespace troupe::kernels::cuda::decode {

void launch_small(Cuda& device, const KvCache& kv, const DecodeArgs& parameters, const DecodeGrid& grid) {
  with_decode_types(kv, [&]<class Element, class Page>(Element, Page) {
    using L = DecodeLayout<Page::kHeadDim, Page::kFormat, true>;
    constexpr int kBytes = int(sizeof(typename L::Shared));
    static_assert(kBytes <= 99 * 1024 && 2 * (kBytes + 1024) <= 164 * 1024);
    launch_decode<Element, L>(device, parameters, grid.blocks);
  });
}

}  // namespace troupe::kernels::cuda::decode
