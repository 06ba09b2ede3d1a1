#pragma once
// The plan of a prefill attention launch: its tiles of queries, their order, and whether their keys are cut.
//
// Sequences with the longest past come first, because all their tiles are long. Within a sequence the tiles
// of a KV head are adjacent, so that blocks running at the same time read the same pages from the L2 cache;
// the last tiles, which are the longest, come first. Blocks take the next unit from a counter.
//
// If whole tiles would leave multiprocessors idle, because there are few tiles or they are long, the tiles'
// keys are cut into pieces of about equal length, so that each block gets one, two or three pieces, whichever
// takes least time. The block that finishes a tile's last piece merges all pieces, always in key order.
#include "kernels/cuda/attention/flash_shape.cuh"
#include "kernels/cuda/warp_scan.cuh"

namespace troupe::kernels::cuda {

template <class S>
__device__ __forceinline__ int flash_tiles(const FlashArguments& a, int tokens) {
  return (tokens * a.group + S::kRows - 1) / S::kRows;
}

/// The unit that covers a whole tile.
template <class S>
__device__ __forceinline__ FlashUnit flash_tile(const FlashArguments& a, const FlashShared<S>& shared,
                                                int tile) {
  int low = 0, high = shared.count;  // binary search: the last sequence whose first tile is <= tile
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (shared.first_tile[middle] <= tile ? low : high) = middle;
  }
  const SequenceRows& s = shared.sequence[low];
  FlashUnit u;
  u.blocks = s.blocks;
  u.position = s.position;
  u.tokens = s.tokens;
  u.row = s.row;
  const int tiles = flash_tiles<S>(a, u.tokens);
  const int index = tile - shared.first_tile[low];
  u.kv_head = index / tiles;
  u.first = (tiles - 1 - index % tiles) * S::kRows;
  const int first_token = token_of(a, u.first);
  const int last_token = min(u.tokens - 1, token_of(a, u.first + S::kRows - 1));
  u.begin = 0;
  u.end = (u.position + last_token) / S::kKeys + 1;
  u.unmasked = (u.position + first_token + 1) / S::kKeys;
  u.tile = tile;
  u.piece = 0;
  u.pieces = 1;
  u.partial = 0;
  return u;
}

template <class S>
__device__ __forceinline__ FlashUnit flash_unit(const FlashArguments& a, const FlashShared<S>& shared,
                                                int unit) {
  if (!shared.cut) return flash_tile(a, shared, unit);
  int low = 0, high = shared.first_tile[shared.count];
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (shared.first_piece[middle] <= unit ? low : high) = middle;
  }
  FlashUnit u = flash_tile(a, shared, low);
  u.partial = shared.first_piece[low];
  u.piece = unit - u.partial;
  u.pieces = shared.first_piece[low + 1] - u.partial;
  const int stages = u.end;
  u.begin = stages * u.piece / u.pieces;
  u.end = stages * (u.piece + 1) / u.pieces;
  return u;
}

/// values[i] becomes the sum of values[1 … i] for i up to count, values[0] becomes 0. By one warp.
__device__ __forceinline__ void prefix_sum(int* values, int count) {
  const int lane = int(threadIdx.x % 32);
  int before = 0;
  for (int i = 0; i < count; i += 32) {
    const int sum = inclusive_sum(i + lane < count ? values[i + lane + 1] : 0, lane);
    if (i + lane < count) values[i + lane + 1] = before + sum;
    before += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) values[0] = 0;
}

/// Pieces of a tile of `stages` if each block gets `rounds` pieces and all pieces are about equally long.
/// `all`: stages of all tiles together.
template <class S>
__device__ __forceinline__ int flash_pieces(int stages, int all, int rounds, int blocks) {
  return max(1, min(int(std::int64_t(stages) * rounds * blocks / all), stages / S::kPieceOverhead));
}

/// Cuts the tiles' keys if that saves more than a ninth of the time. All threads call it.
template <class S>
__device__ void cut_flash_tiles(const FlashArguments& a, FlashShared<S>& shared) {
  const int tiles = shared.first_tile[shared.count], blocks = int(gridDim.x);
  const int tile = int(threadIdx.x);
  const bool leader = tile % 32 == 0;
  static_assert(kFlashCutTiles <= S::kThreads);
  int stages = 0;
  if (tile / 32 * 32 < tiles) {
    if (tile < tiles) stages = flash_tile(a, shared, tile).end;
    const int all = __reduce_add_sync(~0u, stages);
    const int shortest = __reduce_min_sync(~0u, tile < tiles ? stages : 1 << 30);
    if (leader) {
      atomicAdd(&shared.all, all);
      atomicMin(&shared.shortest, shortest);
    }
  }
  __syncthreads();
  // A lower bound for the time of whole tiles, in stages.
  const int whole = max(shared.longest, (tiles + blocks - 1) / blocks * shared.shortest);
  if (whole <= S::kMinStagesToCut || 8L * whole * blocks <= 9L * shared.all) return;
  if (tile / 32 * 32 < tiles) {
#pragma unroll
    for (int w = 0; w < kFlashRounds; ++w) {
      const int pieces = flash_pieces<S>(stages, shared.all, w + 1, blocks);
      const int count = __reduce_add_sync(~0u, tile < tiles ? pieces : 0);
      const int longest = __reduce_max_sync(~0u, (stages + pieces - 1) / pieces);
      if (leader) {
        atomicAdd(&shared.round_pieces[w], count);
        atomicMax(&shared.round_longest[w], longest);
      }
    }
  }
  __syncthreads();
  int rounds = 0, best = whole;
#pragma unroll
  for (int w = 0; w < kFlashRounds; ++w) {
    const int time =
        (shared.round_pieces[w] + blocks - 1) / blocks * (shared.round_longest[w] + S::kPieceOverhead);
    if (time < best) best = time, rounds = w + 1;
  }
  if (rounds == 0) return;
  if (tile < tiles) shared.first_piece[tile + 1] = flash_pieces<S>(stages, shared.all, rounds, blocks);
  __syncthreads();
  if (threadIdx.x < 32) {
    prefix_sum(shared.first_piece, tiles);
    __syncwarp();
    if (threadIdx.x == 0) {
      shared.cut = 1;
      shared.units = shared.first_piece[tiles];
    }
  }
}

/// One thread calls it, before a __syncthreads().
template <class S>
__device__ __forceinline__ void reset_flash_plan(FlashShared<S>& shared) {
  shared.count = shared.cut = shared.all = shared.longest = 0;
  shared.shortest = 1 << 30;
  for (int w = 0; w < kFlashRounds; ++w) shared.round_pieces[w] = shared.round_longest[w] = 0;
}

/// All threads of the block call it.
template <class S>
__device__ void make_flash_plan(const FlashArguments& a, FlashShared<S>& shared) {
  auto* const found = reinterpret_cast<SequenceRows*>(shared.keys);  // the ring is not in use yet
  static_assert(sizeof(shared.keys) >= kFlashSequences * sizeof(SequenceRows));
  for (int s = int(threadIdx.x); s < a.count; s += S::kThreads) {
    const SequenceRows sequence = a.sequences[s];
    if (sequence.tokens <= 1) continue;
    found[atomicAdd(&shared.count, 1)] = sequence;
    atomicMax(&shared.longest, (sequence.position + sequence.tokens - 1) / S::kKeys + 1);
  }
  __syncthreads();
  const int count = shared.count;
  for (int i = int(threadIdx.x); i < count; i += S::kThreads) {
    const SequenceRows mine = found[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) {
      rank += found[j].position > mine.position ||
              (found[j].position == mine.position && found[j].row < mine.row);
    }
    shared.sequence[rank] = mine;
    shared.first_tile[rank + 1] = flash_tiles<S>(a, mine.tokens) * a.kv_heads;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    prefix_sum(shared.first_tile, count);
    __syncwarp();
    if (threadIdx.x == 0) shared.units = shared.first_tile[count];
  }
  ptx::fence_proxy_async();  // the copy engine will overwrite `found`
  __syncthreads();
  if (shared.longest <= S::kMinStagesToCut || shared.units > kFlashCutTiles) return;
  cut_flash_tiles(a, shared);
  __syncthreads();
}

}  // namespace troupe::kernels::cuda
