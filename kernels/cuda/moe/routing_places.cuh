#pragma once
// Placement: from the rows' choices to places in the grouped order. A block places its tile of rows, or all
// rows.
#include <cstdint>

#include "kernels/cuda/moe/routing_choice.cuh"
#include "kernels/cuda/warp_scan.cuh"

namespace troupe::kernels::cuda::routing {

/// Up to this many tiles of kSmallTile rows are placed by the last block of the router kernel itself.
constexpr int kTilesPlacedAtOnce = 16;

/// Rows up to the last one that is not padding, of which those of a tile are `counted`.
__device__ inline int rows_through(int tile, int tile_rows, int counted) {
  return counted > 0 ? tile * tile_rows + counted : 0;
}

/// By expert: its first place and its number of rows; experts that are not held have no places. The last
/// column counts the rows up to the last that is not padding: shared experts take all of them.
struct ExpertColumns {
  int first_place[kMostExperts + 1], total[kMostExperts + 1];

  /// Sets first_place to the exclusive prefix sums of the held experts' totals. The first warp calls it.
  __device__ void sum_totals(const RoutingArgs& a) {
    const int experts = a.experts;
    const int lane = static_cast<int>(threadIdx.x);
    int carry = 0;
    for (int first = 0; first <= experts; first += 32) {
      const int e = first + lane;
      const int own = a.holds(e) ? total[e] : 0;
      const int sum = inclusive_sum(own, lane);
      if (e <= experts) first_place[e] = carry + sum - own;
      carry += __shfl_sync(kWholeWarp, sum, 31);
    }
  }
};

struct PlacedChoice {
  int expert;  ///< -1: none
  int before;  ///< rows of the expert before this one
  float weight;
};

/// Places rows [first, first + rows); with first == 0 also writes the groups' offsets. choices(i) returns the
/// i-th of these rows' choices.
template <class Choices>
__device__ inline void place_rows(const RoutingArgs& a, const ExpertColumns& columns, int first, int rows,
                                  Choices&& choices) {
  const int threads = static_cast<int>(blockDim.x);
  const bool shared_first = a.to.shared_first;
  const int counted = shared_first ? a.rows : columns.total[a.experts];
  const int shared_place = shared_first ? 0 : columns.first_place[a.experts];
  const int expert_place = shared_first ? a.shared * counted : 0;
  const int first_shared = shared_first ? 0 : a.held, first_expert = shared_first ? a.shared : 0;
  if (first == 0) {
    for (int g = threadIdx.x; g <= a.held + a.shared; g += threads) {
      const int slice = g - first_shared, e = g - first_expert;
      const bool of_slice = slice >= 0 && (!shared_first || slice < a.shared);
      a.to.offsets[g] =
          of_slice ? shared_place + slice * counted : expert_place + columns.first_place[a.first + e];
    }
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * a.top_k; i += threads) {
    const PlacedChoice choice = choices(i);
    int place = -1;
    if (a.holds(choice.expert)) {
      place = expert_place + columns.first_place[choice.expert] + choice.before;
      a.to.gather[place] = first + i / a.top_k;
      a.to.scale[place] = choice.weight;
    }
    a.to.places[first * a.top_k + i] = place;
  }
  for (int i = threadIdx.x; i < rows * a.shared; i += threads) {
    const int row = first + i / a.shared;
    if (row >= counted) break;
    const int place = shared_place + i % a.shared * counted + row;
    a.to.gather[place] = row;
    a.to.scale[place] = 1;
  }
}

/// Reads a choice of publish_tile(). earlier(e): rows of expert e in earlier tiles.
template <class Earlier>
__device__ inline PlacedChoice published(const RoutingArgs& a, int at, Earlier&& earlier) {
  const std::uint32_t choice = __ldcg(a.to.choices + at);
  const float weight = __ldcg(a.to.weights + at);
  if (choice == Routing::kNoExpert) return {-1, 0, 0};
  const int e = static_cast<int>(choice & 0xffffu);
  return {e, earlier(e) + static_cast<int>(choice >> 16), weight};
}

/// Places the rows of all tiles, at most kTilesPlacedAtOnce, by one block.
__device__ inline void place_all(const RoutingArgs& a) {
  __shared__ ExpertColumns columns;
  __shared__ std::uint16_t earlier[kTilesPlacedAtOnce][kMostExperts + 1];
  const int width = a.experts + 1;
  for (int e = threadIdx.x; e < width; e += blockDim.x) {
    int count[kTilesPlacedAtOnce];
#pragma unroll
    for (int t = 0; t < kTilesPlacedAtOnce; ++t)
      count[t] = t < a.tiles ? __ldcg(a.to.counts + t * width + e) : 0;
    int sum = 0;
#pragma unroll
    for (int t = 0; t < kTilesPlacedAtOnce; ++t) {
      earlier[t][e] = static_cast<std::uint16_t>(sum);
      sum = e < a.experts ? sum + count[t] : max(sum, rows_through(t, kSmallTile, count[t]));
    }
    columns.total[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.sum_totals(a);
  __syncthreads();
  place_rows(a, columns, 0, a.rows, [&](int i) {
    return published(a, i, [&](int e) { return int{earlier[i / a.top_k / kSmallTile][e]}; });
  });
}

/// Writes the groups and the weights of the choices of the only tile.
__device__ inline void publish_few(const RoutingArgs& a, const RoutingTile& tile) {
  for (int i = threadIdx.x; i < a.rows * a.top_k; i += blockDim.x) {
    const int e = tile.expert[i];
    a.to.experts[i] = e != RoutingTile::kNoExpert && a.holds(e) ? e - a.first : -1;
    a.to.weights[i] = tile.weight[i];
  }
  if (a.norm.squares != nullptr && threadIdx.x < a.rows) a.to.factors[threadIdx.x] = tile.factor[threadIdx.x];
}

/// Places the rows of the only tile.
__device__ inline void place_tile(const RoutingArgs& a, const RoutingTile& tile) {
  __shared__ ExpertColumns columns;
  for (int e = threadIdx.x; e <= a.experts; e += blockDim.x) {
    columns.total[e] = e < a.experts ? tile.count(e) : tile.counted;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.sum_totals(a);
  __syncthreads();
  place_rows(a, columns, 0, a.rows, [&](int i) {
    const int e = tile.expert[i];
    if (e == RoutingTile::kNoExpert) return PlacedChoice{-1, 0, 0};
    return PlacedChoice{e, tile.rank(i / a.top_k, e), tile.weight[i]};
  });
}

}  // namespace troupe::kernels::cuda::routing
