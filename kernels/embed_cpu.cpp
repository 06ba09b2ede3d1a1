#include "kernels/embed.h"

#include <algorithm>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"

namespace troupe::kernels {

// A row of a packed matrix is scattered over its panel, each element or bf16 pair in a cache line of its own.
// Reading it takes some microseconds a token: the price of sharing the table with lm_head.
void run(Cpu& device, const Embed& op) {
  const int inputs = op.table.inputs;
  const auto ld = static_cast<std::size_t>(padded(inputs));
  device.pool().for_each(op.rows, 4, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      const int row = op.tokens[r] - op.first;
      float* out = op.out + static_cast<std::size_t>(r) * ld;
      if (row < 0 || row >= op.table.outputs) {
        std::fill_n(out, ld, 0.0f);
        continue;
      }
      for (int i = 0; i < inputs; ++i) {
        out[i] = load_element(op.table.data, op.table.activations(),
                              packed_index(op.table.activations(), inputs, row, i));
      }
      std::fill(out + inputs, out + ld, 0.0f);
    }
  });
}

}  // namespace troupe::kernels
