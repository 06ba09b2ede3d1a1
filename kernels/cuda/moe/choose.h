#pragma once
// Which kernel routes the rows of a mixture of experts: a pure function of shapes and of the GPU. The
// experts' own products are grouped ones (kernels/cuda/product/choose.h).
#include "gpu/dtype.h"
#include "kernels/cuda/gpu_traits.h"

namespace troupe::kernels::cuda {

inline constexpr int kRoutingTileRows = 16;          ///< of the smallest tile
inline constexpr int kRoutingTilesInOneKernel = 16;  ///< the router's own last block places so many of these
inline constexpr int kRoutingMaxCluster = 8;         ///< blocks of a cluster, eight experts each
inline constexpr int kRoutingMaxClusters = 8;
inline constexpr int kRoutingManyRows = 2048;

enum class RoutingWay {
  generic,        ///< any dtype and GPU: a warp for each row and expert
  tiles_16,       ///< 16 rows × 8 experts a block
  clusters_16,    ///< the same; the blocks of a tile are a cluster and need no global memory between them
  tiles_32,       ///< 32 rows × 16 experts
  tiles_32_wide,  ///< 32 rows × 32 experts
};

struct RoutingShape {
  DType dtype = DType::bf16;
  int experts = 0;
  int rows = 0;
};

struct RoutingChoice {
  RoutingWay way = RoutingWay::generic;
  const char* reason = "";
};

/// Larger tiles read rows and weights less often, smaller ones keep more multiprocessors at work. Only the
/// smallest is batch-invariant. A cluster takes neighbouring multiprocessors: too many find no room.
constexpr RoutingChoice choose(const RoutingShape& s, const GpuTraits& gpu) {
  if (s.dtype != DType::bf16) return {RoutingWay::generic, "only bfloat16 has a tensor core kernel"};
  const bool few = s.rows <= kRoutingTileRows * kRoutingTilesInOneKernel;
  if (!few && !gpu.batch_invariant && gpu.may(KernelWay::routing_wide_tiles)) {
    return s.rows <= kRoutingManyRows ? RoutingChoice{RoutingWay::tiles_32, "some hundred rows"}
                                      : RoutingChoice{RoutingWay::tiles_32_wide, "many rows"};
  }
  if (gpu.features.clusters && gpu.may(KernelWay::routing_clusters) && s.experts <= 8 * kRoutingMaxCluster &&
      s.rows <= kRoutingTileRows * kRoutingMaxClusters)
    return {RoutingWay::clusters_16, "few rows"};
  if (!gpu.may(KernelWay::routing_tiles))
    return {RoutingWay::generic, "the tensor core kernel computes wrongly on this GPU"};
  return {RoutingWay::tiles_16, few                   ? "few rows"
                                : gpu.batch_invariant ? "batch-invariant"
                                                      : "larger tiles compute wrongly on this GPU"};
}

constexpr const char* to_string(RoutingWay way) {
  switch (way) {
    case RoutingWay::generic: return "generic";
    case RoutingWay::tiles_16: return "tiles of 16 rows × 8 experts";
    case RoutingWay::clusters_16: return "tiles of 16 rows × 8 experts, in clusters";
    case RoutingWay::tiles_32: return "tiles of 32 rows × 16 experts";
    case RoutingWay::tiles_32_wide: return "tiles of 32 rows × 32 experts";
  }
  return "?";
}

}  // namespace troupe::kernels::cuda
