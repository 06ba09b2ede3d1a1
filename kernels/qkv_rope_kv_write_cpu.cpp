#include "kernels/qkv_rope_kv_write.h"

#include <cmath>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/linear.h"
#include "kernels/quantize_kv.h"

namespace troupe::kernels {
namespace {

/// Stores the projection's outputs: rotates q and k, writes q to its array, k and v to the KV cache or, if it
/// is quantised, to rows of (k, v) in op.unquantised.
class KvWriter {
 public:
  explicit KvWriter(const QkvRopeKvWrite& op)
      : op_(op),
        keys_at_(op.heads * op.kv.head_dim),
        values_at_(keys_at_ + op.kv.kv_heads * op.kv.head_dim),
        end_(values_at_ + op.kv.kv_heads * op.kv.head_dim),
        ldq_(static_cast<std::size_t>(padded(keys_at_))) {}

  /// Stores outputs [output, output + 32) of row r. head_dim is even, so no rotated pair is split.
  void write_row(int r, int output, const float* sums) const {
    const int head_dim = op_.kv.head_dim;
    const float* rope = op_.rope + static_cast<std::size_t>(r) * static_cast<std::size_t>(head_dim);
    const KvSlot slot = op_.batch.slots[r];
    for (int i = 0; i < kPanel && output + i < end_; i += 2) {
      const int o = output + i;
      if (o >= values_at_) {
        if (op_.kv.quantised()) {
          write_unquantised(r, o, sums[i], sums[i + 1]);
          continue;
        }
        write_value(r, slot, o - values_at_, sums[i]);
        write_value(r, slot, o - values_at_ + 1, sums[i + 1]);
        continue;
      }
      const int dim = o % head_dim;
      const float c = rope[dim], s = rope[dim + 1];
      const float even = sums[i] * c - sums[i + 1] * s;
      const float odd = sums[i + 1] * c + sums[i] * s;
      if (o < keys_at_) {
        constexpr float factor = 1 / kLargestInt8;
        const float* scale = query_scale(o);
        const std::size_t at = static_cast<std::size_t>(r) * ldq_ + static_cast<std::size_t>(o);
        store_element(op_.q, op_.kv.dtype, at, scale == nullptr ? even : even * (scale[0] * factor));
        store_element(op_.q, op_.kv.dtype, at + 1, scale == nullptr ? odd : odd * (scale[1] * factor));
      } else if (op_.kv.quantised()) {
        write_unquantised(r, o, even, odd);
      } else {
        auto* keys = static_cast<std::byte*>(op_.kv.data) +
                     op_.kv.key_offset(slot.block, op_.layer, (o - keys_at_) / head_dim);
        store_element(keys, op_.kv.dtype, packed_index(op_.kv.dtype, head_dim, slot.offset, dim), even);
        store_element(keys, op_.kv.dtype, packed_index(op_.kv.dtype, head_dim, slot.offset, dim + 1), odd);
      }
    }
  }

 private:
  /// Of static keys, the largest magnitude of the channel that query output o meets; else null.
  const float* query_scale(int o) const {
    if (!op_.static_kv.given()) return nullptr;
    const int head_dim = op_.kv.head_dim, kv_head = o / head_dim / (op_.heads / op_.kv.kv_heads);
    return op_.static_kv.keys + kv_head * head_dim + o % head_dim;
  }

  void write_value(int r, KvSlot slot, int index, float v) const {
    const int head_dim = op_.kv.head_dim;
    auto* values =
        static_cast<std::byte*>(op_.kv.data) + op_.kv.value_offset(slot.block, op_.layer, index / head_dim);
    const std::size_t at = packed_index(op_.kv.dtype, kBlockTokens, index % head_dim, slot.offset);
    store_element(values, op_.kv.dtype, at, v);
    // Attention multiplies both tokens of a bf16 pair, the one after the last token by a probability of 0.
    // An earlier sequence in this block may have left a NaN there, so store a 0.
    if (op_.kv.dtype == DType::bf16 && slot.offset % 2 == 0 && !is_next_token(r + 1, slot)) {
      store_element(values, op_.kv.dtype, at + 1, 0.0f);
    }
  }

  void write_unquantised(int r, int output, float first, float second) const {
    const auto at = static_cast<std::size_t>(r) * static_cast<std::size_t>(end_ - keys_at_) +
                    static_cast<std::size_t>(output - keys_at_);
    store_element(op_.unquantised, op_.kv.dtype, at, first);
    store_element(op_.unquantised, op_.kv.dtype, at + 1, second);
  }

  /// True if row r is in the batch and its token follows `slot` in the same block.
  bool is_next_token(int r, KvSlot slot) const {
    return r < op_.batch.rows && op_.batch.slots[r].block == slot.block &&
           op_.batch.slots[r].offset == slot.offset + 1;
  }

  const QkvRopeKvWrite& op_;
  const int keys_at_;    // first output that belongs to k
  const int values_at_;  // first output that belongs to v
  const int end_;        // outputs in all, without padding
  const std::size_t ldq_;
};

/// Codes and scale of K (head < kv_heads) or V (head - kv_heads) of row r.
void quantise_head(const QkvRopeKvWrite& op, int r, int head) {
  const KvCache& kv = op.kv;
  const KvSlot slot = op.batch.slots[r];
  const std::size_t first = (static_cast<std::size_t>(r) * static_cast<std::size_t>(2 * kv.kv_heads) +
                             static_cast<std::size_t>(head)) *
                            static_cast<std::size_t>(kv.head_dim);
  const auto number = [&](int d) {
    return load_element(op.unquantised, kv.dtype, first + static_cast<std::size_t>(d));
  };
  const bool key = head < kv.kv_heads;
  const float* channels = nullptr;
  if (op.static_kv.given())
    channels = (key ? op.static_kv.keys : op.static_kv.values) + head % kv.kv_heads * kv.head_dim;
  float largest = 0;
  for (int d = 0; d < kv.head_dim; ++d) largest = larger_magnitude(largest, number(d));
  const bool finite = !std::isnan(largest);
  const float scale = channels == nullptr || !finite ? kv_scale(kv.format, largest) : 1;
  auto* piece = static_cast<std::byte*>(kv.data) + kv.key_offset(slot.block, op.layer, head);
  reinterpret_cast<float*>(piece + kv.code_bytes())[slot.offset] = scale;
  for (int d = 0; d < kv.head_dim; ++d) {
    const std::size_t at = key ? packed_index(DType::f32, kv.head_dim, slot.offset, d)
                               : packed_index(DType::f32, kBlockTokens, d, slot.offset);
    piece[at] =
        std::byte{channels == nullptr || !finite ? kv_code(kv.format, number(d), scale)
                                                 : static_kv_code(number(d), kLargestInt8 / channels[d])};
  }
}

}  // namespace

void run(Cpu& device, const QkvRopeKvWrite& op) {
  TROUPE_CHECK(op.kv.dtype == op.weight.activations() && op.kv.head_dim % 2 == 0);
  TROUPE_CHECK(op.weight.outputs == (op.heads + 2 * op.kv.kv_heads) * op.kv.head_dim);
  if (op.norm.weight != nullptr) run(device, op.norm);
  const KvWriter writer(op);
  linear<1>(device, op.weight, op.x, op.batch.rows,
            [&](int first, int rows, int panel, const TileSums& sums) {
              for (int i = 0; i < rows; ++i) writer.write_row(first + i, panel * kPanel, sums(0, i));
            });
  if (!op.kv.quantised()) return;
  constexpr int kHeadsPerClaim = 16;
  const int heads = 2 * op.kv.kv_heads;
  device.pool().for_each(op.batch.rows * heads, kHeadsPerClaim, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) quantise_head(op, i / heads, i % heads);
  });
}

}  // namespace troupe::kernels
