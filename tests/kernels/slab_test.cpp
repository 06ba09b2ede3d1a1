// How products of 9 to 64 rows are cut into slabs, and where a slab's lanes find their numbers: the kernel's
// ways through shared memory, lane by lane, on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/product/slab.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

LinearShape slab_shape(Ending ending, int outputs, int inputs, int rows, bool consumes = false,
                       bool produces = false) {
  LinearShape s = test::product(ending, outputs, inputs, rows);
  s.consumes_halved_norm = consumes;
  s.produces_halved_norm = produces;
  return s;
}

TEST(SlabPlan, WhatIsPlannedFitsAKernelAndAMultiprocessor) {
  int planned = 0;
  for (const Ending ending : {Ending::qkv, Ending::swiglu, Ending::add, Ending::store_f32}) {
    for (const auto& [consumes, produces] : {std::pair{false, false}, {true, false}, {false, true}}) {
      for (int inputs = 32; inputs <= 8192; inputs += 96) {
        for (int outputs = 32; outputs <= 8192; outputs += 160) {
          for (const int rows : {8, 9, 16, 17, 40, 41, 64, 65}) {
            const SlabPlan plan =
                slab_plan(slab_shape(ending, outputs, inputs, rows, consumes, produces), kH200);
            if (!plan) continue;
            ++planned;
            SCOPED_TRACE(std::to_string(outputs) + "x" + std::to_string(inputs) + ", " +
                         std::to_string(rows) + " rows");
            const SlabKernel& kernel = plan.kernel;
            ASSERT_TRUE(kernel.ending == ending && kernel.consumes_halved_norm == consumes);
            ASSERT_TRUE(rows >= kSlabLeastRows && rows <= kSlabMostRows);
            ASSERT_TRUE(!produces || (ending == Ending::add && outputs % 64 == 0 && outputs <= 1024));
            ASSERT_TRUE(!consumes || (inputs % 64 == 0 && inputs <= 1024));
            ASSERT_GE(plan.block_chunks * kernel.cluster * kSlabChunkInputs, inputs);
            ASSERT_GE(plan.blocks / kernel.cluster * kernel.outputs, outputs);
            ASSERT_EQ(plan.blocks % kernel.cluster, 0);
            ASSERT_LE(plan.blocks, kernel.cluster > 2 ? 120 : 132);
            ASSERT_EQ(plan.weights_offset % 1024, 0);
            ASSERT_GE(plan.weights_offset, slab_places(plan.block_chunks) * rows * kSlabRowBytes);
            const int weights = plan.block_chunks * kernel.outputs * kSlabRowBytes;
            const int inputs_end = plan.weights_offset + weights;
            ASSERT_GE(weights, kSlabMostRows * kSlabRowBytes)
                << "the tensor cores read 64 rows, also of the last box of x";
            ASSERT_TRUE(plan.inbox_overwrites_inputs || plan.inbox_offset >= inputs_end);
            ASSERT_GE(plan.barriers_offset,
                      std::max(inputs_end, plan.inbox_offset + rows * kernel.outputs * 4));
            ASSERT_EQ(plan.inbox_offset % 16, 0);
            ASSERT_EQ(plan.barriers_offset % 8, 0);
            ASSERT_GE(plan.shared_bytes,
                      plan.barriers_offset + (plan.block_chunks + 1) * 8 + kSlabFactorBytes);
            ASSERT_LE(plan.shared_bytes, kH200.block_shared_bytes);
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 1000);
}

TEST(SlabPlan, NeighboursInAStepOf03BFitOnAMultiprocessorTogether) {
  constexpr int kMultiprocessorBytes = 228 << 10, kReservedBytes = 1 << 10;
  for (int rows = kSlabLeastRows; rows <= kSlabMostRows; ++rows) {
    const SlabPlan products[] = {slab_plan(slab_shape(Ending::add, 1024, 2048, rows, false, true), kH200),
                                 slab_plan(slab_shape(Ending::swiglu, 6144, 1024, rows, true), kH200),
                                 slab_plan(slab_shape(Ending::add, 1024, 3072, rows, false, true), kH200),
                                 slab_plan(slab_shape(Ending::qkv, 2560, 1024, rows, true), kH200)};
    for (const SlabPlan& plan : products) ASSERT_TRUE(plan) << rows;
    for (int i = 0; i < 3; ++i) {
      if (i == 1 && rows > 48) continue;  // gate|up and down do not
      EXPECT_LE(products[i].shared_bytes + products[i + 1].shared_bytes + 2 * kReservedBytes,
                kMultiprocessorBytes)
          << rows << " rows, product " << i;
    }
  }
}

TEST(SlabPlan, OnlySmallDenseProductsInBf16OnAHopper) {
  const LinearShape taken = slab_shape(Ending::add, 1024, 1024, 9);
  EXPECT_TRUE(slab_plan(taken, kH200));
  EXPECT_FALSE(slab_plan(slab_shape(Ending::add, 1024, 1024, 8), kH200));
  EXPECT_FALSE(slab_plan(slab_shape(Ending::add, 1024, 1024, 65), kH200));
  EXPECT_FALSE(slab_plan(slab_shape(Ending::add, 2560, 2560, 9), kH200))
      << "more blocks than multiprocessors";
  EXPECT_FALSE(slab_plan(slab_shape(Ending::add, 1024, 448, 9), kH200)) << "fewer chunks than blocks share";
  EXPECT_FALSE(slab_plan(slab_shape(Ending::add, 1056, 576, 9, false, true), kH200));
  LinearShape s = taken;
  s.groups = 8;
  EXPECT_FALSE(slab_plan(s, kH200));
  for (const WeightFormat& format : {WeightFormat(DType::f16), WeightFormat(WeightKind::int8, DType::bf16)}) {
    s = taken;
    s.format = format;
    EXPECT_FALSE(slab_plan(s, kH200));
  }
  GpuTraits gpu = kH200;
  gpu.features.clusters = false;
  EXPECT_FALSE(slab_plan(taken, gpu));
  gpu = kH200;
  gpu.batch_invariant = true;
  EXPECT_FALSE(slab_plan(taken, gpu));
}

TEST(SlabPlan, GroupsCoverAllChunksAndTheLastTakesThePlaceOfTheFirst) {
  for (int chunks = 1; chunks <= 64; ++chunks) {
    EXPECT_EQ(slab_group_begin(chunks, 0), 0);
    EXPECT_EQ(slab_group_begin(chunks, kSlabGroups), chunks);
    for (int q = 0; q < chunks; ++q) {
      const int place = slab_place(chunks, q);
      ASSERT_LT(place, slab_places(chunks));
      if (place != q) {
        ASSERT_GE(q, slab_group_begin(chunks, 3));
        ASSERT_LT(place, slab_group_begin(chunks, 1));
      }
    }
  }
}

/// Small whole numbers, whose sums of products are exact. NaN outside: what is read there shows.
struct Numbers {
  int rows, cols;
  std::vector<float> values;
  Numbers(int rows, int cols, std::uint32_t seed)
      : rows(rows), cols(cols), values(std::size_t(rows) * std::size_t(cols)) {
    std::mt19937 random(seed);
    for (float& v : values) v = float(int(random() % 7) - 3);
  }
  float at(int row, int col) const { return values[std::size_t(row) * std::size_t(cols) + std::size_t(col)]; }
};

using Finished = std::map<std::pair<int, int>, float>;  ///< by row of x and output, each once

/// One cluster's blocks as slab_block.cuh has them.
template <SlabKernel kKernel>
class Emulated {
  using Shape = SlabShape<kKernel>;

 public:
  Emulated(const SlabPlan& plan, const Numbers& weight, const Numbers& x, int first_output)
      : plan_(plan), weight_(weight), x_(x), first_output_(first_output) {
    chunks_ = (x.cols + kSlabChunkInputs - 1) / kSlabChunkInputs;
    for (auto& inbox : inboxes_)
      inbox.assign(std::size_t(Shape::kCluster * Shape::rows_of(0, x.rows) * Shape::kOutputs), NAN);
    for (int rank = 0; rank < Shape::kCluster; ++rank) run_block(rank);
  }

  void finish(Finished& finished) const {
    for (int rank = 0; rank < Shape::kCluster; ++rank) {
      const std::vector<float>& inbox = inboxes_[std::size_t(rank)];
      EXPECT_EQ(received_[rank], Shape::kCluster * Shape::rows_of(rank, x_.rows) * Shape::kOutputs);
      for (int pass = 0; pass < Shape::kPasses; ++pass) {
        for (int thread = 0; thread < kSlabThreads; ++thread) {
          const int n = Shape::finished_row(rank, pass, thread), m = Shape::finished_output(thread);
          EXPECT_EQ(n, Shape::finished_row(rank, pass, thread / 4 * 4));
          if (n >= x_.rows || first_output_ + m >= weight_.rows) continue;
          for (int i = 0; i < (Shape::kPairs ? 8 : 4); ++i) {
            const int output = m + i % 4 + i / 4 * 8;  // the ups of four gates are 8 further
            float sum = 0;
            for (int sender = 0; sender < Shape::kCluster; ++sender)
              sum += inbox.at(std::size_t(Shape::inbox_index(x_.rows, sender, n, output)));
            EXPECT_TRUE(finished.emplace(std::pair{n, first_output_ + output}, sum).second)
                << "row " << n << " output " << output << " twice";
          }
        }
      }
    }
  }

 private:
  /// Shared memory by elements of two bytes.
  struct Shared {
    std::vector<float> elements;
    float& at(int byte, int i) { return elements.at(std::size_t(byte / 2 + i)); }
    /// An element of a box as the copy engine and the tensor cores have it: with the 128-byte swizzle.
    float& of_box(int box, int row, int col) {
      const int byte = row * kSlabRowBytes + col * 2;
      return at(box + (byte ^ (byte >> 3 & 0x70)), 0);
    }
  };

  void run_block(int rank) {
    const int first_chunk = slab_first_chunk(chunks_, rank, Shape::kCluster);
    const int chunks = slab_first_chunk(chunks_, rank + 1, Shape::kCluster) - first_chunk;
    ASSERT_LE(chunks, plan_.block_chunks);
    Shared shared{std::vector<float>(std::size_t(plan_.shared_bytes / 2), NAN)};
    // The copy engine's boxes of weights.
    for (int q = 0; q < chunks; ++q) {
      for (int row = 0; row < Shape::kOutputs; ++row) {
        for (int col = 0; col < kSlabChunkInputs; ++col) {
          const int input = (first_chunk + q) * kSlabChunkInputs + col, output = first_output_ + row;
          const bool there = output < weight_.rows && input < weight_.cols;
          shared.of_box(plan_.weights_offset + q * Shape::kBoxBytes, row, col) =
              there ? weight_.at(output, input) : 0;
        }
      }
    }
    // By row of x and output.
    std::vector<float> sums(std::size_t(kSlabMostRows * Shape::kOutputs));
    const auto request = [&](int group) {  // request_x()
      for (int q = slab_group_begin(chunks, group); q < slab_group_begin(chunks, group + 1); ++q) {
        for (int thread = 0; thread < kSlabThreads; ++thread) {
          for (int row = thread / 8, piece = thread % 8; row < x_.rows; row += kSlabThreads / 8) {
            for (int e = 0; e < 8; ++e) {
              const int input = (first_chunk + q) * kSlabChunkInputs + piece * 8 + e;
              shared.at(slab_piece_at(thread / 8, piece) + slab_place(chunks, q) * slab_x_box_bytes(x_.rows) +
                            (row - thread / 8) * kSlabRowBytes,
                        e) = input < x_.cols ? x_.at(row, input) : 0;
            }
          }
        }
      }
    };
    const auto multiply = [&](int group) {
      for (int q = slab_group_begin(chunks, group); q < slab_group_begin(chunks, group + 1); ++q) {
        for (int n = 0; n < kSlabMostRows; ++n) {
          for (int m = 0; m < Shape::kOutputs; ++m) {
            float& sum = sums[std::size_t(n * Shape::kOutputs + m)];
            for (int k = 0; k < kSlabChunkInputs; ++k) {
              sum += shared.of_box(slab_place(chunks, q) * slab_x_box_bytes(x_.rows), n, k) *
                     shared.of_box(plan_.weights_offset + q * Shape::kBoxBytes, m, k);
            }
          }
        }
      }
    };
    for (const int group : {0, 1, 2}) request(group);
    multiply(0);
    request(3);
    for (const int group : {1, 2, 3}) multiply(group);
    for (int warp = 0; warp < kSlabMultiplyingWarps; ++warp) {
      for (int j = 0; j < Shape::kOutputs / 8; ++j) {
        float d[32][4];
        for (int lane = 0; lane < 32; ++lane) {
          for (int i = 0; i < 4; ++i)
            d[lane][i] = sums[std::size_t((warp * 16 + lane / 4 + i / 2 * 8) * Shape::kOutputs + j * 8 +
                                          2 * (lane % 4) + i % 2)];
        }
        send(rank, warp, j, d);
      }
    }
  }

  void send(int rank, int warp, int j, const float (&d)[32][4]) {
    for (int lane = 0; lane < 32; ++lane) {
      const float* const other = d[lane ^ 1];
      const float even[4] = {d[lane][0], d[lane][1], other[0], other[1]},
                  odd[4] = {other[2], other[3], d[lane][2], d[lane][3]};
      const int n = slab_sent_row(warp, lane);
      if (n >= x_.rows) continue;
      const int index = Shape::inbox_index(x_.rows, rank, n, slab_sent_output(lane)) + j * 8;
      ASSERT_EQ(index % 4, 0) << "16 bytes in one message";
      for (int i = 0; i < 4; ++i) {
        float& to = inboxes_[std::size_t(n % Shape::kCluster)].at(std::size_t(index + i));
        ASSERT_TRUE(std::isnan(to)) << "sent twice";
        to = lane % 2 != 0 ? odd[i] : even[i];
        ++received_[n % Shape::kCluster];
      }
    }
  }

  const SlabPlan& plan_;
  const Numbers &weight_, &x_;
  int first_output_, chunks_ = 0;
  std::array<std::vector<float>, Shape::kCluster> inboxes_;
  int received_[Shape::kCluster] = {};
};

template <std::size_t kIndex>
void expect_product() {
  constexpr SlabKernel kKernel = kSlabKernels[kIndex];
  const int outputs = kKernel.outputs + 32;  // part of a slab
  // A last chunk with half its inputs, but for halved norms; chunks that the blocks share unevenly.
  for (const int inputs : kKernel.consumes_halved_norm ? std::vector{320, 1024} : std::vector{544, 1184}) {
    for (const int rows : {9, 16, 33, 40, 64}) {
      SCOPED_TRACE("kernel " + std::to_string(kIndex) + ", " + std::to_string(inputs) + " inputs, " +
                   std::to_string(rows) + " rows");
      const SlabPlan plan =
          slab_plan(slab_shape(kKernel.ending, outputs, inputs, rows, kKernel.consumes_halved_norm), kH200);
      ASSERT_TRUE(plan && plan.kernel == kKernel);
      const Numbers weight(outputs, inputs, 1), x(rows, inputs, 2);
      Finished finished;
      for (int first = 0; first < outputs; first += kKernel.outputs)
        Emulated<kKernel>(plan, weight, x, first).finish(finished);
      ASSERT_EQ(finished.size(), std::size_t(rows) * std::size_t(outputs));
      for (const auto& [place, sum] : finished) {
        float expected = 0;
        for (int k = 0; k < inputs; ++k) expected += weight.at(place.second, k) * x.at(place.first, k);
        ASSERT_EQ(sum, expected) << "row " << place.first << ", output " << place.second;
      }
    }
  }
}

template <std::size_t... kIndex>
void expect_products(std::index_sequence<kIndex...>) {
  (expect_product<kIndex>(), ...);
}

TEST(Slab, EverySumReachesTheThreadThatFinishesIt) {
  expect_products(std::make_index_sequence<std::size(kSlabKernels)>());
}

}  // namespace
}  // namespace troupe::kernels::cuda
