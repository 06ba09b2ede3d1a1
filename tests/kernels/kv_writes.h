#pragma once
// Keys and values as an op writes them, and where they lie on each device.
#include <cstring>
#include <vector>

#include "kernels/cpu/layout.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/device_under_test.h"
#include "kernels/head_shape.h"
#include "kernels/qkv_rope_kv_write.h"
#include "kernels/rope_table.h"

namespace troupe::kernels {

/// Byte offset of a code within its piece.
inline std::size_t code_at(bool cuda, const KvCache& kv, bool value, int token, int d) {
  if (cuda) return std::size_t(cuda::kv_code_index(kv.head_dim, token, d));
  return value ? packed_index(DType::f32, kBlockTokens, d, token)
               : packed_index(DType::f32, kv.head_dim, token, d);
}

/// Element index within a plain piece.
inline std::size_t plain_at(bool cuda, const KvCache& kv, bool value, int token, int d) {
  if (cuda) return std::size_t(cuda::kv_index(cuda::swizzled(kv.dtype, kv.head_dim), kv.head_dim, token, d));
  return value ? packed_index(kv.dtype, kBlockTokens, d, token)
               : packed_index(kv.dtype, kv.head_dim, token, d);
}

/// Projects, rotates and writes the rows of two sequences (the second one's blocks hold the later rows) and
/// padding.
struct Written {
  std::vector<std::byte> memory, q;
};

inline constexpr int kLayers = 2, kLayer = 1, kPoolBlocks = 6, kPadding = 2;
inline constexpr std::byte kUntouched{0xa5};

inline Written write(DeviceUnderTest& device, DType dtype, const HeadShape& s, KvFormat format, int first,
                     int tokens, const Weight& weight, int hidden, StaticKv static_kv = {}) {
  KvCache kv{
      .dtype = dtype, .layers = kLayers, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .format = format};
  Memory memory(device, kPoolBlocks * kv.block_bytes());
  std::memset(memory.change(), int(kUntouched), memory.bytes());
  kv.data = memory.as();
  const int padding = device.is_cuda() ? kPadding : 0, rows = tokens + 1 + padding;
  auto values = random_floats(std::size_t(rows * hidden), 5);
  for (int i = 0; i < hidden; ++i) values[std::size_t(i)] = 0;  // row 0: k and v are zero
  const Rows x(device, dtype, rows, hidden, values);
  const Rows q(device, dtype, rows, s.heads * s.head_dim);
  const std::vector<BlockId> table{4, 1, 5}, other{2};
  std::vector<SequenceRows> sequences{{table.data(), first, tokens, 0}, {other.data(), 7, 1, tokens}};
  std::vector<KvSlot> slots(std::size_t(rows), KvSlot{kPaddingBlock, 0});
  std::vector<std::int32_t> positions(std::size_t(rows), 0);
  describe_rows(sequences.data(), 2, slots.data(), positions.data());
  std::vector<float> frequencies(std::size_t(s.head_dim / 2));
  rope_inverse_frequencies(frequencies.data(), s.head_dim, 10000);
  const Memory rope(device, std::size_t(rows * s.head_dim) * sizeof(float));
  run(device, RopeTable{.out = rope.as<float>(),
                        .positions = device.put(positions),
                        .inverse_frequencies = device.put(frequencies),
                        .rows = rows,
                        .head_dim = s.head_dim});
  sequences[0].blocks = device.put(table);
  sequences[1].blocks = device.put(other);
  const Memory waiting(device, kv.unquantised_bytes(rows) + 64);
  run(device, QkvRopeKvWrite{.q = q.data(),
                             .x = x.data(),
                             .weight = weight.matrix,
                             .rope = rope.as<float>(),
                             .kv = kv,
                             .layer = kLayer,
                             .heads = s.heads,
                             .batch = {device.put(sequences), device.put(slots), 2, rows},
                             .static_kv = static_kv,
                             .unquantised = waiting.as()});
  const std::byte* host = memory.host();
  return {{host, host + memory.bytes()}, {q.row(0), q.row(0) + std::size_t(tokens + 1) * q.row_bytes()}};
}

/// Largest magnitudes of channels, some smaller than numbers are.
inline std::vector<float> drawn_channels(const HeadShape& s, std::uint32_t seed) {
  std::vector<float> channels = random_floats(std::size_t(s.kv_heads * s.head_dim), seed, 0.5f);
  for (float& channel : channels) channel = 0.5f + std::abs(channel);
  return channels;
}

}  // namespace troupe::kernels
