// Decode attention: launches of its kernel for items of several tokens.
#include "base/check.h"
#include "kernels/cuda/attention/decode_kernel.cuh"
#include "kernels/cuda/attention/working_memory.h"

namespace troupe::kernels::cuda::decode {
namespace {

/// The layout of kFewKernels[kKernel].
template <class Page, int kKernel, int kTiles, int kTeams>
struct FewKernelLayout : FewLayout<Page::kHeadDim, Page::kFormat, kTiles, kTeams,
                                   kFewKernels[kKernel].blocks_per_multiprocessor> {
  using L = FewLayout<Page::kHeadDim, Page::kFormat, kTiles, kTeams,
                      kFewKernels[kKernel].blocks_per_multiprocessor>;
  static_assert(L::kColumns == kFewKernels[kKernel].columns &&
                partial_floats(L::kHeadDim, L::kColumns) == decode_partial_floats(L::kHeadDim, L::kColumns));
};

}  // namespace

void launch_few(Cuda& device, const KvCache& kv, const DecodeArgs& parameters, const DecodeGrid& grid) {
  with_decode_types(kv, [&]<class Element, class Page>(Element, Page) {
    switch (grid.few_kernel) {
      case 0: return launch_decode<Element, FewKernelLayout<Page, 0, 2, 1>>(device, parameters, grid.blocks);
      case 1: return launch_decode<Element, FewKernelLayout<Page, 1, 2, 2>>(device, parameters, grid.blocks);
      case 2: return launch_decode<Element, FewKernelLayout<Page, 2, 2, 3>>(device, parameters, grid.blocks);
      case 3: return launch_decode<Element, FewKernelLayout<Page, 3, 3, 3>>(device, parameters, grid.blocks);
      default: TROUPE_CHECK(false);
    }
  });
}

}  // namespace troupe::kernels::cuda::decode
