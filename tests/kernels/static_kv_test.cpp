// Keys, values and queries with static scales of channels on every device, beside the numbers of a plain
// cache.
#include <algorithm>
#include <cmath>

#include "kernels/kv_writes.h"

namespace troupe::kernels {
namespace {

class StaticKvTest : public OpTest {};
TROUPE_ALL_DEVICES(StaticKvTest);

TEST_P(StaticKvTest, CodesToTheBit) {
  for (const HeadShape& s : {HeadShape{16, 2, 128}, HeadShape{5, 1, 96}, HeadShape{4, 2, 64}}) {
    SCOPED_TRACE("head_dim " + std::to_string(s.head_dim));
    const int outputs = (s.heads + 2 * s.kv_heads) * s.head_dim, hidden = 64, first = 60, tokens = 7;
    const Weight weight(device(), dtype(), outputs, hidden,
                        random_floats(std::size_t(outputs * hidden), 3, 0.2f));
    const std::vector<float> channels[] = {drawn_channels(s, 8), drawn_channels(s, 9)};
    const Written plain = write(device(), dtype(), s, KvFormat::plain, first, tokens, weight, hidden);
    const Written coded = write(device(), dtype(), s, KvFormat::int8, first, tokens, weight, hidden,
                                {device().put(channels[0]), device().put(channels[1])});
    const KvCache from{.dtype = dtype(), .layers = kLayers, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
    KvCache to = from;
    to.format = KvFormat::int8;
    for (int r = 0; r < tokens; ++r) {
      const int t = (first + r) % 64;
      const BlockId block = first + r < 64 ? 4 : 1;
      for (int head = 0; head < 2 * s.kv_heads; ++head) {
        const bool value = head >= s.kv_heads;
        const std::byte* const numbers = plain.memory.data() + from.key_offset(block, kLayer, head);
        const std::byte* const codes = coded.memory.data() + to.key_offset(block, kLayer, head);
        float scale = 0;
        std::memcpy(&scale, codes + to.code_bytes() + std::size_t(t) * 4, 4);
        EXPECT_EQ(scale, 1);
        for (int d = 0; d < s.head_dim; ++d) {
          const float number = load_element(numbers, dtype(), plain_at(where().cuda, from, value, t, d));
          const float channel = channels[value ? 1 : 0][std::size_t(head % s.kv_heads * s.head_dim + d)];
          const float expected = std::round(std::clamp(number * (127 / channel), -127.0f, 127.0f));
          EXPECT_EQ(float(std::int8_t(codes[code_at(where().cuda, to, value, t, d)])), expected);
        }
      }
      for (int i = 0; i < s.heads * s.head_dim; ++i) {
        const int kv_head = i / s.head_dim / (s.heads / s.kv_heads);
        const float factor = channels[0][std::size_t(kv_head * s.head_dim + i % s.head_dim)] / 127;
        const std::size_t at = std::size_t(r * padded(s.heads * s.head_dim) + i);
        const float number = load_element(plain.q.data(), dtype(), at) * factor;
        EXPECT_NEAR(load_element(coded.q.data(), dtype(), at), number,
                    4 * rounding_unit(dtype()) * std::abs(double(number)) +
                        (dtype() == DType::f16 ? 0x1p-23 : 0));  // below f16's normal numbers
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
