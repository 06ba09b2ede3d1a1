#pragma once
// How the sampling kernel shares out its rows: a pure function of shapes and of the GPU.
#include <cstddef>

#include "kernels/cuda/gpu_traits.h"

namespace troupe::kernels::cuda {

inline constexpr int kSampleCluster = 8;  ///< blocks of a row in a cluster; without clusters one
inline constexpr int kSampleThreads = 256, kSampleManyThreads = 512;  ///< of a block
inline constexpr int kSampleFewRows = 8;
inline constexpr int kSampleMaxResident = (1 << 14) - 4;  ///< logits that a block keeps in shared memory

struct SampleShape {
  int rows = 0;
  int vocab = 0;
};

struct SampleChoice {
  /// True if a row's logits stay in the shared memory of its blocks. Else they lie in scratch memory.
  bool resident = false;
  int blocks = 1;        ///< of a row
  int block_logits = 0;  ///< of a block, at most; a multiple of 4
  int threads = 0;       ///< of a block
  const char* reason = "";
};

/// Few rows: many threads for each. Many rows: four blocks of 256 threads fit on a multiprocessor.
constexpr SampleChoice choose(const SampleShape& s, const GpuTraits& gpu) {
  SampleChoice c{.blocks = gpu.features.clusters ? kSampleCluster : 1};
  c.block_logits = (s.vocab + 4 * c.blocks - 1) / (4 * c.blocks) * 4;
  const bool fits = c.block_logits <= kSampleMaxResident;
  c.resident = c.blocks > 1 && fits && gpu.may(KernelWay::sample_resident);
  c.threads = s.rows <= kSampleFewRows || !c.resident ? kSampleManyThreads : kSampleThreads;
  c.reason = c.resident      ? "a row fits the shared memory of its cluster"
             : c.blocks == 1 ? "the GPU has no clusters"
             : fits          ? "logits in shared memory are computed wrongly on this GPU"
                             : "the vocabulary is too long for the shared memory of a cluster";
  return c;
}

/// Working memory of the sampling kernel: the rows' logits, unless they stay in shared memory.
constexpr std::size_t working_bytes(const SampleShape& s, const GpuTraits& gpu) {
  const SampleChoice c = choose(s, gpu);
  return c.resident ? 0
                    : sizeof(float) * static_cast<std::size_t>(c.block_logits) *
                          static_cast<std::size_t>(c.blocks) * static_cast<std::size_t>(s.rows);
}

}  // namespace troupe::kernels::cuda
