#pragma once
// Tensor maps describe a tensor in global memory to Hopper's copy engine. The host makes one for each launch
// (a few hundred nanoseconds) and passes it as a __grid_constant__ parameter, so that a captured graph keeps
// its own.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/cuda.h"
#include "gpu/cuda_check.h"
#include "gpu/dtype.h"

namespace troupe::cuda {

/// A tensor of 16-bit elements, dimensions innermost first. It is copied in boxes, with a swizzle of 128 or
/// 64 bytes, which a row of the box then has, or row after row (0). Elements outside the sizes read as zeros.
struct BoxedTensor {
  const void* data = nullptr;  ///< 16-byte aligned
  DType dtype = DType::bf16;
  std::uint64_t sizes[3] = {1, 1, 1};
  std::uint64_t strides[2] = {
      16, 16};  ///< bytes from one index of dimensions 1 and 2 to the next; multiples of 16
  std::uint32_t box[3] = {64, 1, 1};  ///< each at most 256
  int swizzle = 128;
};

inline CUtensorMap tensor_map(const BoxedTensor& tensor) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    TROUPE_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                 cudaEnableDefault, &found));
    if (function == nullptr) throw CudaError("the NVIDIA driver offers no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(function);
  }();
  CUtensorMap map{};
  const std::uint32_t steps[3] = {1, 1, 1};
  const CUresult result = encode(
      &map, tensor.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      3, const_cast<void*>(tensor.data), tensor.sizes, tensor.strides, tensor.box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      tensor.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
      : tensor.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                             : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError("cuTensorMapEncodeTiled refused a tensor: error " +
                    std::to_string(static_cast<int>(result)));
  }
  return map;
}

}  // namespace troupe::cuda
