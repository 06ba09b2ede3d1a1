#pragma once
// One block of a streaming product: few rows, weights that are read once at the memory's bandwidth.
//
// A block computes kM outputs of kN rows of x. One warp fills a ring of stages in shared memory with boxes of
// weights; the others multiply. Weights are constants, so the ring is filled before the kernel waits for the
// previous one: the memory is at work while that one ends. Blocks are small, so that several fit on a
// multiprocessor, also the next kernel's. Up to 8 rows of x are resident in shared memory, loaded by the
// warps that multiply; more rows go through the ring, beside their weights.
//
// Operands of mma.sync: weights are A (16 outputs × 16 inputs), rows of x are B (8 columns). The 16 inputs of
// an instruction may be any, if A and B agree, and so may the outputs that are A's rows. Lane 4 g + t takes
// inputs 8 t … 8 t + 7 of a chunk of 32, of A's row g and B's column g: one 16-byte load each, whose four
// words serve two instructions. A's row g is output g / 2 + g % 2 * 4 of eight. So the eight lanes that load
// at a time use different banks in the swizzle of the copy engine. Rows of x are laid out and read in the
// same way.
//
// With few outputs and many inputs the blocks of a cluster share a tile's inputs. They send their sums to the
// block that finishes the outputs, which adds them in the order of the blocks. The order of additions depends
// on the shape of the weight and on kN, not on the other rows. With fp8 a box is a block of inputs: its sums
// are multiplied by the scales of x and of the weights before they are added up.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product/box_copy.cuh"
#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/stream_tile.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::streaming {

/// The block's state; all members are the same in all threads except lane, warp and what derives from them.
template <class Tile>
struct StreamBlock {
  static constexpr int kM = Tile::kM, kN = Tile::kN, kWarps = Tile::kWarps;
  static constexpr int kTilesM = Tile::kTilesM, kTilesN = Tile::kTilesN, kChains = Tile::kChains;
  using Codes = typename Tile::Codes;
  static constexpr int kOperands = Codes::kOperands;

  const StreamArgs& a;
  char* const shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const ptx::SharedAddress full = ptx::shared_address(shared), empty = full + 8 * kMaxStages;
  const ptx::SharedAddress got = empty + 8 * kMaxStages;  ///< sums of the cluster's blocks
  const ptx::SharedAddress ring = full + kHeaderBytes;
  // The grid: a cluster's blocks, row tiles, tiles of outputs. So row tiles of a weight run together.
  const int rank = static_cast<int>(blockIdx.x), output_tile = static_cast<int>(blockIdx.z);
  const int first_output = output_tile * kM;
  const int outputs = min(kM, a.ending.outputs - first_output);
  RowTile rows{};
  int known_x = -1;  ///< row of x that the first of `rows` reads, of a known group; else -1
  // The block's inputs in chunks, and in pieces; a piece fills a stage.
  const int first_chunk = min(a.chunks, rank* a.block_boxes * 2);
  const int chunks = min(a.chunks - first_chunk, a.block_boxes * 2);
  const int piece_chunks = a.boxes * 2;
  /// 16-byte pieces of a row of x. A row of codes may cover more inputs, by weights of zero: those of x are
  /// then made zero too.
  const int x_sixteens = static_cast<int>(a.x_row_bytes / 16);
  static constexpr bool kScaleLines = Codes::kGroupScales || Codes::kLines;
  const int scale_lines = kScaleLines ? kBox * kOperands / a.scale_group : 0;
  const int stage_bytes = streaming::stage_bytes(kM, Tile::kRingN, a.boxes, kOperands, scale_lines);
  /// Boxes of x: those of the ring's first stage, or all resident ones.
  const ptx::SharedAddress x_at =
      ring +
      static_cast<ptx::SharedAddress>(Tile::kWholeX ? a.stages * stage_bytes : a.boxes * kM * kRowBytes);
  /// Scales of the ring's first stage, behind its boxes.
  const ptx::SharedAddress scales_at =
      ring + static_cast<ptx::SharedAddress>(a.boxes * (kM + Tile::kRingN * kOperands) * kRowBytes);
  const ptx::SharedAddress inbox =
      ring + static_cast<ptx::SharedAddress>(
                 a.stages * stage_bytes + (Tile::kWholeX ? a.block_boxes * kOperands * kN * kRowBytes : 0));
  /// fp8, behind all else: scales of weights, [box][eight outputs], and of x, [box][row].
  const ptx::SharedAddress weight_scales_at =
      full + static_cast<ptx::SharedAddress>(a.shared_bytes - block_scale_bytes(a.block_boxes, kM, kN));
  const ptx::SharedAddress x_scales_at =
      weight_scales_at + static_cast<ptx::SharedAddress>(a.block_boxes * (kM / kFp8ScaleOutputs) * 4);
  // Outputs that the block finishes: fours from m_first; of gate|up only those that are gates.
  const int log_slice = log_slice_of(kM, a.cluster);
  const int slice = 1 << log_slice;
  const int slice_pitch = slice + 4;
  const int m_first = rank * slice;
  const bool pairs = a.ending.ending == Ending::swiglu;
  const int log_fours = log_slice - (pairs ? 3 : 2);
  const int fours = max(0, min(slice, outputs - m_first)) >> (pairs ? 3 : 2);

  /// Where one warp leaves the block's rows for the others; behind the barriers.
  __device__ __forceinline__ RowTile* settled_rows() const {
    return reinterpret_cast<RowTile*>(shared + 256);
  }
  __device__ __forceinline__ int scale_line_bytes() const {  ///< that exist
    return Codes::kLines ? outputs : outputs * 2;
  }
  /// Lines of group scales that box b of a piece has; wint2 may end within a box.
  __device__ __forceinline__ int scale_lines_of(int piece, int b) const {
    if constexpr (!Codes::kLines) return scale_lines;
    constexpr int kOfChunk = kChunkBytes / kWint2PieceBytes;
    const int chunk = first_chunk + piece * piece_chunks + b * 2;
    return min(scale_lines, static_cast<int>(a.row_bytes) / kWint2PieceBytes - chunk * kOfChunk);
  }
  __device__ __forceinline__ int chunks_of(int piece) const {
    return min(piece_chunks, chunks - piece * piece_chunks);
  }
  __device__ __forceinline__ ptx::SharedAddress at_stage(int stage) const { return stage * stage_bytes; }
  /// The weights of the block's group.
  __device__ __forceinline__ const char* weight() const {
    return a.weight + static_cast<std::size_t>(rows.group) * a.groups.weight_stride;
  }
  __device__ __forceinline__ bool gathered() const { return a.groups.gather != nullptr; }
  /// Row of x that row r of the block reads.
  __device__ __forceinline__ std::size_t row_of_x(int r) const {
    if (known_x >= 0) return static_cast<std::size_t>(known_x + r);
    return static_cast<std::size_t>(gathered() ? a.groups.gather[rows.first + r] : rows.first + r);
  }
  __device__ __forceinline__ int output_of(int four) const {
    return pairs ? four / 2 * 16 + four % 2 * 4 : four * 4;
  }

  /// Fetches a piece of the weights into a stage. Called by one warp.
  __device__ __forceinline__ void bring_piece(const CUtensorMap* map, int piece, int stage) const {
    const int here = chunks_of(piece), boxes = (here + 1) / 2;
    const ptx::SharedAddress barrier = full + 8 * stage;
    int lines = 0;
    if constexpr (kScaleLines) {
      for (int b = 0; b < boxes; ++b) lines += scale_lines_of(piece, b);
    }
    begin_boxes(barrier, boxes * kM * kRowBytes + lines * scale_line_bytes(), lane);
    for (int b = 0; b < boxes; ++b) {
      const int chunk = first_chunk + piece * piece_chunks + b * 2;
      if constexpr (kScaleLines) {
        constexpr int kScaleBytes = Codes::kLines ? 1 : 2;
        for (int line = 0; line < scale_lines_of(piece, b); ++line) {
          const int group = chunk * (kOperands * 32) / a.scale_group + line;
          copy_line(scales_at + at_stage(stage) +
                        static_cast<ptx::SharedAddress>((b * scale_lines + line) * scale_line_pitch(kM)),
                    weight() + a.groups_at +
                        (static_cast<std::size_t>(group) * a.ending.outputs + first_output) * kScaleBytes,
                    scale_line_bytes(), barrier, lane);
        }
      }
      copy_box(
          ring + at_stage(stage) + static_cast<ptx::SharedAddress>(b * kM * kRowBytes), barrier,
          {.map = map,
           .column = chunk * (kChunkBytes / 2),
           .row = first_output,
           .group = rows.group,
           .first = weight() + static_cast<std::size_t>(first_output) * a.row_bytes + chunk * kChunkBytes,
           .row_bytes = a.row_bytes,
           .rows = outputs,
           .columns = (here - b * 2) * (kChunkBytes / 2)},
          lane);
    }
    end_boxes(barrier);
  }
  __device__ __forceinline__ void fill_ring(const CUtensorMap* map) const {
    for (int i = 0; i < a.stages && i * piece_chunks < chunks; ++i) bring_piece(map, i, i);
  }
  /// Brings the weights that did not fit the ring, where x is resident.
  __device__ __forceinline__ void refill_ring(const CUtensorMap* map) const {
    Turn turn{a.stages, 0};
    for (int i = a.stages; i * piece_chunks < chunks; ++i, turn.next()) {
      ptx::mbarrier_wait(empty + 8 * turn.stage, turn.parity);
      bring_piece(map, i, turn.stage);
    }
  }
  /// Brings x, and the weights that did not fit the ring.
  __device__ __forceinline__ void refill_ring_with_x(const CUtensorMap* map, const CUtensorMap* x_map) const {
    constexpr int kOfLane = (kN + 3) / 4;  // gathered: lane 8 q + c takes chunk c of rows q, q + 4, …
    const int chunk16 = lane % 8, first_row = lane / 8;
    const char* from[kOfLane];
#pragma unroll
    for (int q = 0; q < kOfLane; ++q) {
      const int r = first_row + 4 * q;
      from[q] = nullptr;
      if (gathered() && r < rows.count)
        from[q] = a.x + row_of_x(r) * a.x_row_bytes + first_chunk * (kOperands * kChunkBytes) + chunk16 * 16;
    }
    Turn turn{a.stages, 1};
    for (int i = 0; i * piece_chunks < chunks; ++i, turn.next()) {
      const int here = chunks_of(i) * kOperands, boxes = (here + 1) / 2;  // of x
      const ptx::SharedAddress barrier = full + 8 * turn.stage, to = x_at + at_stage(turn.stage);
      ptx::mbarrier_wait(empty + 8 * turn.stage, turn.parity);
      if (i >= a.stages) bring_piece(map, i, turn.stage);
      if (!gathered()) {
        begin_boxes(barrier, boxes * kN * kRowBytes, lane);
        for (int b = 0; b < boxes; ++b) {
          const int chunk = (first_chunk + i * piece_chunks) * kOperands + b * 2;
          copy_box(to + static_cast<ptx::SharedAddress>(b * kN * kRowBytes), barrier,
                   {.map = x_map,
                    .column = chunk * (kChunkBytes / 2),
                    .row = rows.first,
                    .first = a.x + static_cast<std::size_t>(rows.first) * a.x_row_bytes + chunk * kChunkBytes,
                    .row_bytes = a.x_row_bytes,
                    .rows = rows.count,
                    .columns = min(here - b * 2, x_sixteens / 4 - chunk) * (kChunkBytes / 2)},
                   lane);
        }
        end_boxes(barrier);
        continue;
      }
      for (int b = 0; b < boxes; ++b) {
        if (b * 8 + chunk16 >= here * 4) break;
        const int chunk = i * piece_chunks * kOperands + b * 2;
        const bool there = (first_chunk * kOperands + chunk) * 4 + chunk16 < x_sixteens;
#pragma unroll
        for (int q = 0; q < kOfLane; ++q) {
          const int r = first_row + 4 * q;
          if (from[q] != nullptr) {
            ptx::copy_async_16_or_zero(to + static_cast<ptx::SharedAddress>(
                                                b * kN * kRowBytes + r * kRowBytes + (chunk16 ^ r % 8) * 16),
                                       from[q] + chunk * kChunkBytes, there);
          }
        }
      }
      ptx::mbarrier_arrive_after_copies(barrier);
    }
  }

  // A lane's part of the operands: row g of A and column g of B, inputs from 8 t of each chunk of 32. Its
  // sums are rows g and g + 8 of columns 2 t and 2 t + 1.
  __device__ __forceinline__ int t() const { return lane % 4; }
  __device__ __forceinline__ int row() const { return lane / 4 / 2 + lane / 4 % 2 * 4; }
  __device__ __forceinline__ int m0() const { return warp % Tile::kWarpsM * (kTilesM * 16); }
  __device__ __forceinline__ int n0() const { return warp / Tile::kWarpsM * (kTilesN * 8); }

  using Sums = StreamSums<Tile>;

  __device__ __forceinline__ const float* floats(ptx::SharedAddress at) const {
    return reinterpret_cast<const float*>(shared + (at - full));
  }
  __device__ __forceinline__ uint4 load(ptx::SharedAddress at) const {
    return *reinterpret_cast<const uint4*>(shared + (at - full));
  }
  using Lines = StreamLines<Tile>;

  /// A lane's 16 bytes of codes of a chunk.
  __device__ __forceinline__ uint4 load_codes(ptx::SharedAddress at) const {
    if constexpr (Codes::kLines) {
      const auto eight = [&](ptx::SharedAddress from) {
        return *reinterpret_cast<const uint2*>(shared + (from - full));
      };
      const uint2 first = eight(at), second = eight(at ^ kWint2PieceBytes);
      return make_uint4(first.x, first.y, second.x, second.y);
    } else {
      return load(at);
    }
  }
  /// wint2: the scales of the first (o: 0) to fourth (6) 64 inputs of a chunk, of the lane's output `output`
  /// places after its first.
  __device__ __forceinline__ typename Wint2Codes::Scale wint2_scale(int o, ptx::SharedAddress scales,
                                                                    int output) const {
    const auto line = static_cast<ptx::SharedAddress>(o / 4 * scale_line_pitch(kM));
    const std::uint32_t both =
        *reinterpret_cast<const std::uint8_t*>(shared + (scales + line - full) + m0() + row() + output);
    return Wint2Codes::Scale(o % 4 == 0 ? both >> 4 : both);
  }
  /// The operand of the i-th 32 inputs of a chunk, of the lane's output `output` places after its first.
  /// `scales` is the line of the chunk's first group.
  __device__ __forceinline__ uint4 operand(uint4 codes, int i, ptx::SharedAddress scales, int output) const {
    if constexpr (Codes::kGroupScales) {
      const auto line = static_cast<ptx::SharedAddress>(i * 32 / a.scale_group * scale_line_pitch(kM));
      return Codes::operand(
          codes, i,
          *reinterpret_cast<const Bf16*>(shared + (scales + line - full) + (m0() + row() + output) * 2));
    } else {
      return Codes::operand(codes, i);
    }
  }
  /// Multiplies chunk `half` (0 or 1) of a box of weights by its inputs, in the boxes from x_box on. Each
  /// operand covers half a box of x. `scales` is the line of the chunk's first group.
  __device__ __forceinline__ void multiply_chunk(Sums& sums, int half, const Halves& w_box,
                                                 const Halves& x_box, ptx::SharedAddress scales,
                                                 const Lines& lines) const {
    const int chain = half * (kChains / 2);
    const ptx::SharedAddress w = w_box.at[half];
    uint4 codes[kTilesM][2];
    [[maybe_unused]] Wint2Codes::Scale group_scales[kTilesM][2];
#pragma unroll
    for (int o = 0; o < kOperands; ++o) {
      const int of_box = half * kOperands + o;
      const ptx::SharedAddress at = x_box.at[of_box % 2] + of_box / 2 * (kN * kRowBytes);
      uint4 b[kTilesN];
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) b[j] = load(at + j * 8 * kRowBytes);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        if (o == 0) {
          codes[i][0] = load_codes(w + i * 16 * kRowBytes);
          codes[i][1] = load_codes(w + (i * 16 + 8) * kRowBytes);
        }
        uint4 low, high;
        if constexpr (Codes::kLines) {
          if (o % 2 == 0) {
            group_scales[i][0] = wint2_scale(o, scales, i * 16);
            group_scales[i][1] = wint2_scale(o, scales, i * 16 + 8);
          }
          low = Codes::operand(codes[i][0], o, lines.of[i][0], group_scales[i][0]);
          high = Codes::operand(codes[i][1], o, lines.of[i][1], group_scales[i][1]);
        } else {
          low = operand(codes[i][0], o, scales, i * 16);
          high = operand(codes[i][1], o, scales, i * 16 + 8);
        }
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          ptx::mma<typename Tile::Operand>(sums.of[chain][i][j], low.x, high.x, low.y, high.y, b[j].x,
                                           b[j].y);
        }
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          ptx::mma<typename Tile::Operand>(sums.of[kChains == 1 ? 0 : chain + 1][i][j], low.z, high.z, low.w,
                                           high.w, b[j].z, b[j].w);
        }
      }
    }
  }
  /// In the first boxes.
  __device__ __forceinline__ StreamOperands place_operands() const {
    StreamOperands operands;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ptx::SharedAddress chunk = row() * kRowBytes + ((t() + half * 4) ^ row()) * 16;
      const ptx::SharedAddress of_codes =
          Codes::kLines ? row() * kRowBytes + ((t() / 2 + half * 4) ^ row()) * 16 + t() % 2 * 8 : chunk;
      operands.w.at[half] = ring + m0() * kRowBytes + of_codes;
      operands.x.at[half] = x_at + n0() * kRowBytes + chunk;
      ptx::materialize(operands.w.at[half]);
      ptx::materialize(operands.x.at[half]);
    }
    return operands;
  }
  /// Adds the product of a box, scaled, to chain 0 of `sums`. The addresses are those of the box's scales.
  __device__ __forceinline__ void multiply_scaled_box(Sums& sums, const Halves& w, const Halves& x,
                                                      ptx::SharedAddress weight_scales,
                                                      ptx::SharedAddress x_scales) const {
    Sums part;
    multiply_chunk(part, 0, w, x, 0, {});
    multiply_chunk(part, 1, w, x, 0, {});
    const auto* of_x = floats(x_scales) + n0() + t();
    const auto* of_weight = floats(weight_scales) + m0() / kFp8ScaleOutputs;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      const float2 both = *reinterpret_cast<const float2*>(of_weight + 2 * i);
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        const float left = of_x[8 * j], right = of_x[8 * j + 4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& to = sums.of[0][i][j][c];
          to = fmaf(part.total(i, j, c), (c % 2 == 0 ? left : right) * (c / 2 == 0 ? both.x : both.y), to);
        }
      }
    }
  }
  __device__ __forceinline__ void multiply(Sums& sums, const StreamOperands& operands,
                                           const Lines& lines_of_lane) const {
    Turn turn{a.stages, 0};
    for (int i = 0; i * piece_chunks < chunks; ++i, turn.next()) {
      wait_for_boxes(full + 8 * turn.stage, turn.parity);
      const Halves w = operands.w + at_stage(turn.stage);
      const Halves x =
          operands.x + (Tile::kWholeX
                            ? static_cast<ptx::SharedAddress>(i * a.boxes * kOperands * kN * kRowBytes)
                            : at_stage(turn.stage));
      const ptx::SharedAddress scales = scales_at + at_stage(turn.stage);
      const int here = chunks_of(i);
#pragma unroll 2
      for (int b = 0; b < here / 2; ++b) {
        const Halves w_box = w + b * (kM * kRowBytes), x_box = x + b * (kOperands * kN * kRowBytes);
        if constexpr (Codes::kBlockScales) {
          const auto box = static_cast<ptx::SharedAddress>((i * a.boxes + b) * 4);
          multiply_scaled_box(sums, w_box, x_box, weight_scales_at + box * (kM / kFp8ScaleOutputs),
                              x_scales_at + box * kN);
          continue;
        }
        const ptx::SharedAddress lines =
            scales + static_cast<ptx::SharedAddress>(b * scale_lines * scale_line_pitch(kM));
        multiply_chunk(sums, 0, w_box, x_box, lines, lines_of_lane);
        multiply_chunk(sums, 1, w_box, x_box,
                       lines + static_cast<ptx::SharedAddress>(scale_lines / 2 * scale_line_pitch(kM)),
                       lines_of_lane);
      }
      if (here % 2 != 0) {
        const int b = here / 2;
        multiply_chunk(sums, 0, w + b * (kM * kRowBytes), x + b * (kOperands * kN * kRowBytes),
                       scales + static_cast<ptx::SharedAddress>(b * scale_lines * scale_line_pitch(kM)),
                       lines_of_lane);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(empty + 8 * turn.stage);
    }
  }

  __device__ __forceinline__ SumsPlace<Tile> place_sums() const {
    SumsPlace<Tile> to;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      const int m = m0() + i * 16, owner = m >> log_slice;
      const int at = ((rank * kN + n0() + t()) * slice_pitch + (m & (slice - 1)) + row()) * 4;
      to.sums[i] =
          (a.cluster > 1 ? ptx::peer_address(inbox, owner) : ring) + static_cast<ptx::SharedAddress>(at);
      to.barrier[i] = ptx::peer_address(got, owner);
      ptx::materialize(to.sums[i]);
      ptx::materialize(to.barrier[i]);
    }
    return to;
  }
  __device__ __forceinline__ void hand_over(const Sums& sums, const SumsPlace<Tile>& to) const {
    if (a.cluster > 1) {
      ptx::warp_cluster_wait();  // all blocks have begun
    } else {
      ptx::barrier_sync(1, kWarps * 32);
    }
    const auto four_rows = static_cast<ptx::SharedAddress>(slice_pitch * 16);
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const ptx::SharedAddress at = to.sums[i] + (j * 2 + c % 2) * four_rows + c / 2 * 32;
          const float sum = sums.total(i, j, c);
          if (a.cluster == 1) {
            *reinterpret_cast<float*>(shared + (at - full)) = sum;
          } else if (n0() + j * 8 + t() + c % 2 * 4 < rows.count) {
            ptx::store_async(at, sum, to.barrier[i]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ float4 total(ptx::SharedAddress at) const {
    const auto one = [&](ptx::SharedAddress from) { return *reinterpret_cast<const float4*>(floats(from)); };
    float4 y = one(at);
    if (a.cluster == 1) return y;
    const auto from_next = static_cast<ptx::SharedAddress>(kN * slice_pitch * 4);
    float4 part[kMaxCluster];
#pragma unroll
    for (int r = 1; r < kMaxCluster; ++r) {
      if (r < a.cluster) part[r] = one(at + r * from_next);
    }
#pragma unroll
    for (int r = 1; r < kMaxCluster; ++r) {
      if (r < a.cluster) y = make_float4(y.x + part[r].x, y.y + part[r].y, y.z + part[r].z, y.w + part[r].w);
    }
    return y;
  }
  /// The index-th four of the outputs that this block finishes, row after row.
  struct Mine {
    bool there;
    int p, o;
    ptx::SharedAddress at;  ///< of its first sums
  };
  __device__ __forceinline__ Mine mine(int index) const {
    const int n = index >> log_fours, four = index & ((1 << log_fours) - 1), m = output_of(four);
    Mine it{n < rows.count && four < fours, rows.first + n, first_output + m_first + m,
            (a.cluster > 1 ? inbox : ring) + static_cast<ptx::SharedAddress>((n * slice_pitch + m) * 4)};
    ptx::materialize(it.at);
    return it;
  }
  /// Scales of the outputs o … o + 3, and of their ups. Constant: read before the wait.
  struct OutputScales {
    float4 y{}, up{};
  };
  __device__ __forceinline__ OutputScales output_scales(int o) const {
    OutputScales scales;
    if constexpr (Codes::kOutputScales) {
      const float* from = reinterpret_cast<const float*>(weight() + a.scales_at) + o;
      scales.y = *reinterpret_cast<const float4*>(from);
      if (pairs) scales.up = *reinterpret_cast<const float4*>(from + 8);
    }
    return scales;
  }
  __device__ __forceinline__ void finish(const Mine& first, typename Tile::Finish& first_four,
                                         const OutputScales& first_scales) const {
    if (a.cluster > 1) {
      ptx::mbarrier_wait(got, 0);
    } else {
      ptx::barrier_sync(1, kWarps * 32);
    }
    const auto end = [&](const Mine& it, typename Tile::Finish& four, const OutputScales& scales) {
      float4 y = total(it.at), up = pairs ? total(it.at + 8 * 4) : y;
      if constexpr (Codes::kOutputScales) {
        y = scaled(y, scales.y);
        up = scaled(up, scales.up);
      }
      four.finish(y, up);
    };
    if (first.there) end(first, first_four, first_scales);
    for (int i = static_cast<int>(threadIdx.x) + kWarps * 32; i >> log_fours < rows.count; i += kWarps * 32) {
      const Mine it = mine(i);
      if (!it.there) continue;
      typename Tile::Finish four(a.ending, it.p, it.o);
      four.read();
      end(it, four, output_scales(it.o));
    }
  }
};

}  // namespace troupe::kernels::cuda::streaming
