#pragma once
// How an output of LinearBias ends, and four of a row where a product ends as Four (ending.cuh) does.
#include "kernels/cuda/product/ending.cuh"

namespace troupe::kernels::cuda {

/// y / (1 + exp(-1.702 y)).
template <class T>
__device__ __forceinline__ float quick_gelu(float y) {
  if constexpr (sizeof(T) == 4) return y / (1.0f + expf(-1.702f * y));
  return __fdividef(y, 1.0f + __expf(-1.702f * y));
}

__device__ __forceinline__ float gelu(float y) { return 0.5f * y * (1.0f + erff(y * 0.70710678f)); }

/// Used as Four. EndingArgs::bias and bias_ending say what happens; there are no ups.
template <class T>
class BiasedFour {
 public:
  __device__ __forceinline__ BiasedFour(const EndingArgs& e, int p, int o) : e_(e), o_(o) {
    to_ = static_cast<char*>(e.out) + (static_cast<std::size_t>(p) * static_cast<std::size_t>(e.out_stride) +
                                       static_cast<std::size_t>(o)) *
                                          (wide() ? 4 : sizeof(T));
  }

  __device__ __forceinline__ void read() {
    if (e_.bias != nullptr) bias_ = *reinterpret_cast<const float4*>(e_.bias + o_);
    if (e_.bias_ending == BiasEnding::add) before_ = *reinterpret_cast<const float4*>(to_);
  }

  __device__ __forceinline__ void finish(float4 y, float4) {
    y = sum(y, bias_);
    if (wide()) {
      *reinterpret_cast<float4*>(to_) = e_.bias_ending == BiasEnding::add ? sum(before_, y) : y;
      return;
    }
    if (e_.bias_ending == BiasEnding::quick_gelu) {
      y = make_float4(quick_gelu<T>(y.x), quick_gelu<T>(y.y), quick_gelu<T>(y.z), quick_gelu<T>(y.w));
    } else if (e_.bias_ending == BiasEnding::gelu) {
      y = make_float4(gelu(y.x), gelu(y.y), gelu(y.z), gelu(y.w));
    }
    store_four(reinterpret_cast<T*>(to_), y.x, y.y, y.z, y.w);
  }

 private:
  __device__ __forceinline__ bool wide() const {
    return e_.bias_ending == BiasEnding::set || e_.bias_ending == BiasEnding::add;
  }
  __device__ __forceinline__ static float4 sum(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }

  const EndingArgs& e_;
  int o_;
  char* to_;
  float4 bias_{}, before_{};
};

}  // namespace troupe::kernels::cuda
