#pragma once
// The compiled kernels of the ways of a product, for tests: what the tables of the linear_*_cuda.cu hold.
#include <vector>

namespace troupe::kernels::cuda {

struct CompiledKernel {
  const void* kernel = nullptr;
  int threads = 0;       ///< of a block; 0: the plan says
  int shared_bytes = 0;  ///< dynamic, of a block; 0: the plan says
};

std::vector<CompiledKernel> generic_kernels();
std::vector<CompiledKernel> strip_kernels();   ///< kStripKernels, for each number of sets of rows
std::vector<CompiledKernel> slab_kernels();    ///< kSlabKernels
std::vector<CompiledKernel> stream_kernels();  ///< has_stream_kernel()
std::vector<CompiledKernel> tile_kernels();    ///< has_tile_kernel(), and those of LinearBias
std::vector<CompiledKernel> wgmma_kernels();   ///< kWgmmaTiles of 16-bit weights
std::vector<CompiledKernel> wgmma_fp8_kernels();
std::vector<CompiledKernel> unpacked_kernels();
std::vector<CompiledKernel> expanded_kernels();
std::vector<CompiledKernel> few_kernels();  ///< has_few_kernel(), of gate|up and of down

}  // namespace troupe::kernels::cuda
