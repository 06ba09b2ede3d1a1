#include "kernels/fill_random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/pack_quantised.h"

namespace troupe::kernels {
namespace {

/// Inverse of the normal distribution function, by bisection. Slow; called for 4096 values, once.
double normal_quantile(double probability) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

template <class Element>
void fill(const FillRandom& op, const std::array<Element, kQuantiles>& table, int output, int rows) {
  auto* data = static_cast<Element*>(op.into.data);
  const int inputs = op.into.inputs;
  const int end = op.part.first + inputs;
  for (int group = op.part.first / kDrawsPerHash; group * kDrawsPerHash < end; ++group) {
    const int from = std::max(op.part.first, group * kDrawsPerHash),
              to = std::min(end, (group + 1) * kDrawsPerHash);
    for (int o = output; o < output + rows; ++o) {
      std::uint64_t bits = draw_bits(op.seed, static_cast<std::uint32_t>(op.first_output + o),
                                     static_cast<std::uint32_t>(group));
      bits >>= 16 * (from % kDrawsPerHash);
      const int placed = placed_output(op.place, op.first, o);
      for (int i = from; i < to; ++i, bits >>= 16) {
        data[packed_index(op.into.activations(), inputs, placed, i - op.part.first)] =
            table[bits % kQuantiles];
      }
    }
  }
}

/// The draws, in the element type of `dtype`.
template <class Element>
std::array<Element, kQuantiles> draws(const FillRandom& op, DType dtype) {
  std::array<Element, kQuantiles> table;
  for (int i = 0; i < kQuantiles; ++i) {
    std::uint16_t rounded = 0;
    store_element(&rounded, DType::bf16, 0, normal_quantiles()[i] * op.deviation);
    store_element(table.data(), dtype, static_cast<std::size_t>(i), load_element(&rounded, DType::bf16, 0));
  }
  return table;
}

template <class Element>
void fill_all(Cpu& device, const FillRandom& op) {
  const auto table = draws<Element>(op, op.into.activations());
  const int pieces = (op.outputs + kPanel - 1) / kPanel;
  device.pool().for_each(pieces, 4, [&](int begin, int end, int) {
    for (int piece = begin; piece < end; ++piece) {
      fill<Element>(op, table, piece * kPanel, std::min(kPanel, op.outputs - piece * kPanel));
    }
  });
}

}  // namespace

const std::array<float, kQuantiles>& normal_quantiles() {
  static const std::array<float, kQuantiles> table = [] {
    std::array<double, kQuantiles> raw{};
    double squares = 0;
    for (int i = 0; i < kQuantiles; ++i) {
      raw[i] = normal_quantile((i + 0.5) / kQuantiles);
      squares += raw[i] * raw[i];
    }
    std::array<float, kQuantiles> scaled{};
    const double stretch = 1 / std::sqrt(squares / kQuantiles);
    for (int i = 0; i < kQuantiles; ++i) scaled[i] = static_cast<float>(raw[i] * stretch);
    return scaled;
  }();
  return table;
}

void run(Cpu& device, const FillRandom& op) {
  TROUPE_CHECK(op.outputs > 0 && placed_output(op.place, op.first, op.outputs - 1) < padded(op.into.outputs));
  if (op.into.format.kind == WeightKind::wint2) {
    fill_wint2(device, op);
  } else if (op.into.format.quantised()) {
    fill_quantised(device, op, draws<float>(op, DType::f32).data());
  } else if (op.into.activations() == DType::f32) {
    fill_all<float>(device, op);
  } else {
    fill_all<std::uint16_t>(device, op);
  }
}

}  // namespace troupe::kernels
