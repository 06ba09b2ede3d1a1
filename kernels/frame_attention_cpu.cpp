// Keys and values of a head are packed like weights, so that both products are those of the linear ops: a
// tile of queries times the keys' panels gives rows of scores, and their softmax times the values' panels the
// output.
#include "kernels/frame_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "gpu/buffer.h"
#include "kernels/attention.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/linear.h"

namespace troupe::kernels {
namespace {

constexpr int kFrameRowsPerClaim = 32;

class FrameHeads {
 public:
  FrameHeads(Cpu& device, const FrameAttention& op)
      : device_(device),
        op_(op),
        r_(routines(device.isa())),
        keys_{nullptr, op.dtype, op.rows, op.head_dim},
        values_{nullptr, op.dtype, op.head_dim, op.rows},
        query_format_(r_, keys_),
        weight_format_(r_, values_),
        width_(op.heads * op.head_dim),
        tile_rows_(tile_of(r_, keys_.format).rows.most) {
    const std::size_t key_bytes = aligned_bytes(matrix_bytes(op.dtype, op.rows, op.head_dim));
    const std::size_t value_bytes = aligned_bytes(matrix_bytes(op.dtype, op.head_dim, op.rows));
    // Padding of the matrices is 0 for all heads: their shapes are the same.
    auto* memory = static_cast<std::byte*>(device.scratch(key_bytes + value_bytes));
    std::memset(memory, 0, key_bytes + value_bytes);
    keys_.data = memory;
    values_.data = memory + key_bytes;
    const auto rows = static_cast<std::size_t>(tile_rows_);
    scores_at_ = 0;
    rounded_at_ = scores_at_ + aligned_bytes(rows * columns() * sizeof(float));
    weights_at_ = rounded_at_ + aligned_bytes(columns() * sizeof(float));
    queries_at_ = weights_at_ + aligned_bytes(rows * weight_format_.pitch());
    device.reserve_lanes(queries_at_ + rows * query_format_.pitch());
  }

  void run() {
    const int end_of_queries = op_.first + op_.count;
    for (int head = 0; head < op_.heads; ++head) {
      device_.pool().for_each(op_.rows, kFrameRowsPerClaim, [&](int begin, int end, int) {
        for (int r = begin; r < end; ++r) pack(head, r);
      });
      const int tiles = (op_.count + tile_rows_ - 1) / tile_rows_;
      device_.pool().for_each(tiles, 1, [&](int begin, int end, int lane) {
        const TileUse use(r_);
        for (int tile = begin; tile < end; ++tile) {
          const int first = op_.first + tile * tile_rows_;
          attend(head, first, std::min(tile_rows_, end_of_queries - first), lane);
        }
      });
    }
  }

 private:
  std::size_t columns() const { return static_cast<std::size_t>(padded(op_.rows)); }
  /// Element of packed: part 0, 1, 2 for query, key, value.
  std::size_t element(int row, int part, int head) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(padded(3 * width_)) +
           static_cast<std::size_t>(part * width_ + head * op_.head_dim);
  }

  void pack(int head, int row) const {
    const std::size_t key = element(row, 1, head), value = element(row, 2, head);
    for (int d = 0; d < op_.head_dim; ++d) {
      const auto i = static_cast<std::size_t>(d);
      store_element(keys_.data, op_.dtype, packed_index(op_.dtype, op_.head_dim, row, d),
                    load_element(op_.packed, op_.dtype, key + i));
      store_element(values_.data, op_.dtype, packed_index(op_.dtype, op_.rows, d, row),
                    load_element(op_.packed, op_.dtype, value + i));
    }
  }

  void attend(int head, int first, int rows, int lane) const {
    auto* const memory = static_cast<std::byte*>(device_.lane(lane));
    auto* const scores = reinterpret_cast<float*>(memory + scores_at_);
    const auto dtype = static_cast<int>(op_.dtype);

    alignas(64) std::byte query[(kMostHeadDim + kPanel) * sizeof(float)];
    for (int i = 0; i < rows; ++i) {
      const auto* from =
          static_cast<const std::byte*>(op_.packed) + element(first + i, 0, head) * size_of(op_.dtype);
      const std::size_t bytes = static_cast<std::size_t>(op_.head_dim) * size_of(op_.dtype);
      std::memcpy(query, from, bytes);
      std::memset(query + bytes, 0,
                  static_cast<std::size_t>(padded(op_.head_dim)) * size_of(op_.dtype) - bytes);
      query_format_.convert(memory + queries_at_ + static_cast<std::size_t>(i) * query_format_.pitch(), query,
                            0, query_format_.width());
    }
    const Operands queries = operands(memory + queries_at_, query_format_);
    for (int panel = 0; panel < padded(op_.rows) / kPanel; ++panel) {
      multiply<1>(r_, keys_, queries, 0, rows, panel, [&](int from, int count, const TileSums& sums) {
        for (int i = 0; i < count; ++i) {
          std::memcpy(scores + static_cast<std::size_t>(from + i) * columns() +
                          static_cast<std::size_t>(panel) * kPanel,
                      sums(0, i), kPanel * sizeof(float));
        }
      });
    }
    for (int i = 0; i < rows; ++i) {
      float* row = scores + static_cast<std::size_t>(i) * columns();
      softmax(row);
      r_.narrow[dtype](memory + rounded_at_, row, columns());
      weight_format_.convert(memory + weights_at_ + static_cast<std::size_t>(i) * weight_format_.pitch(),
                             memory + rounded_at_, 0, columns());
    }
    const Operands weights = operands(memory + weights_at_, weight_format_);
    for (int panel = 0; panel < padded(op_.head_dim) / kPanel; ++panel) {
      multiply<1>(r_, values_, weights, 0, rows, panel, [&](int from, int count, const TileSums& sums) {
        for (int i = 0; i < count; ++i) store(head, first + from + i, panel, sums(0, i));
      });
    }
  }

  static Operands operands(const void* data, const OperandFormat& format) {
    return {data, format.pitch() / format.element(), format.element()};
  }

  /// In place; zeros in the padding. Lanes of their own let the compiler keep the loops in vectors.
  void softmax(float* row) const {
    constexpr std::size_t kLanes = 16;
    std::fill(row + op_.rows, row + columns(), -1e30f);
    float most[kLanes], sums[kLanes] = {};
    std::fill_n(most, kLanes, -1e30f);
    for (std::size_t s = 0; s < columns(); s += kLanes) {
      for (std::size_t l = 0; l < kLanes; ++l) most[l] = row[s + l] > most[l] ? row[s + l] : most[l];
    }
    r_.exponentials(row, columns(), *std::max_element(most, most + kLanes), op_.scale);
    for (std::size_t s = 0; s < columns(); s += kLanes) {
      for (std::size_t l = 0; l < kLanes; ++l) sums[l] += row[s + l];
    }
    float sum = 0;
    for (const float lane : sums) sum += lane;
    const float inverse = 1 / sum;
    for (std::size_t s = 0; s < columns(); ++s) row[s] *= inverse;
  }

  void store(int head, int row, int panel, const float* sums) const {
    const std::size_t at =
        static_cast<std::size_t>(row - op_.first) * static_cast<std::size_t>(padded(width_)) +
        static_cast<std::size_t>(head * op_.head_dim);
    const int end = std::min(op_.head_dim, (panel + 1) * kPanel);
    for (int d = panel * kPanel; d < end; ++d)
      store_element(op_.out, op_.dtype, at + static_cast<std::size_t>(d), sums[d - panel * kPanel]);
  }

  Cpu& device_;
  const FrameAttention& op_;
  const Routines& r_;
  Matrix keys_, values_;
  const OperandFormat query_format_, weight_format_;
  const int width_;
  const int tile_rows_;
  std::size_t scores_at_ = 0, rounded_at_ = 0, weights_at_ = 0, queries_at_ = 0;  // in a lane
};

void rotate_row(const PackFrame& op, void* packed, int row) {
  const auto dim = static_cast<std::size_t>(op.head_dim), half = dim / 2;
  const std::size_t width = static_cast<std::size_t>(op.heads) * dim;
  const std::size_t from =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(padded(3 * op.heads * op.head_dim));
  const float* const rope = op.rope + static_cast<std::size_t>(row) * dim;
  if (packed != op.qkv) {
    const std::size_t values = (from + 2 * width) * size_of(op.dtype);
    std::memcpy(static_cast<std::byte*>(packed) + values, static_cast<const std::byte*>(op.qkv) + values,
                width * size_of(op.dtype));
  }
  for (std::size_t head = 0; head < 2 * static_cast<std::size_t>(op.heads);
       ++head) {  // keys' follow the queries'
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t first = from + head * dim + i, second = first + half;
      const float a = load_element(op.qkv, op.dtype, first), b = load_element(op.qkv, op.dtype, second);
      const float c = rope[2 * i], s = rope[2 * i + 1];
      store_element(packed, op.dtype, first, a * c - b * s);
      store_element(packed, op.dtype, second, b * c + a * s);
    }
  }
}

}  // namespace

std::size_t packed_bytes(const Cpu&, const FrameAttention& op) {
  return static_cast<std::size_t>(op.rows) * plain_row_bytes(op);
}

MemoryLines keys_and_values(const Cpu&, const FrameAttention& op, int first, int count) {
  return plain_keys_and_values(op, first, count);
}

void run(Cpu& device, const PackFrame& op) {
  TROUPE_CHECK(op.head_dim % 2 == 0 && op.first % kFrameQueries == 0 && op.first + op.count <= op.rows);
  const std::size_t row_bytes =
      plain_row_bytes({.dtype = op.dtype, .heads = op.heads, .head_dim = op.head_dim});
  auto* const packed = static_cast<std::byte*>(op.packed) + static_cast<std::size_t>(op.first) * row_bytes;
  device.pool().for_each(op.count, kFrameRowsPerClaim, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) rotate_row(op, packed, row);
  });
}

void run(Cpu& device, const FrameAttention& op) {
  TROUPE_CHECK(op.head_dim % 2 == 0 && op.head_dim <= kMostHeadDim && op.scale > 0);
  TROUPE_CHECK(op.first % kFrameQueries == 0 && op.first + op.count <= op.rows);
  if (op.count > 0) FrameHeads(device, op).run();
}

}  // namespace troupe::kernels
