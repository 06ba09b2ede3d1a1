#include "kernels/best_isa.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/cpu.h"
#include "kernels/lm_head.h"
#include "kernels/pack.h"

namespace troupe::kernels {
namespace {

// Two sides of a panel and a part of the next one; whole steps of inputs and a part of one; one row, one
// half of a tile and a part of the other.
constexpr int kCheckedOutputs = 40, kCheckedInputs = 168, kCheckedRowCounts[] = {1, 19};
constexpr int kMostCheckedRows = 19;

/// Numbers of -1 … 1 with 7 bits, which bf16 holds.
std::vector<float> checked_numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> made(count);
  for (float& number : made) {
    seed = seed * 1664525u + 1013904223u;
    number = (static_cast<float>(seed >> 24) - 128.0f) / 128.0f;
  }
  return made;
}

/// x (rows, 168) and weights (40, 168), multiplied by one set.
class CheckedProduct {
 public:
  CheckedProduct(Isa isa, const WeightFormat& format)
      : device_({.threads = 1, .pin = false, .isa = isa}),
        weight_{device_.alloc(matrix_bytes(format, kCheckedOutputs, kCheckedInputs)), format, kCheckedOutputs,
                kCheckedInputs} {}

  std::vector<float> run(const std::vector<float>& x, const std::vector<float>& weights, int rows) {
    kernels::run(device_, Pack{.into = weight_,
                               .source = weights.data(),
                               .source_dtype = DType::f32,
                               .outputs = kCheckedOutputs});
    const DType dtype = weight_.activations();
    std::vector<float> stored(static_cast<std::size_t>(rows) * kInputs), logits(std::size_t(rows) * kOutputs);
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < kCheckedInputs; ++i) {
        store_element(stored.data(), dtype, static_cast<std::size_t>(r) * kInputs + std::size_t(i),
                      x[static_cast<std::size_t>(r * kCheckedInputs + i)]);
      }
    }
    kernels::run(device_,
                 LmHead{.logits = logits.data(), .x = stored.data(), .weight = weight_, .rows = rows});
    return logits;
  }

  static constexpr auto kInputs = static_cast<std::size_t>(padded(kCheckedInputs));
  static constexpr auto kOutputs = static_cast<std::size_t>(padded(kCheckedOutputs));

 private:
  Cpu device_;
  Matrix weight_;
};

Status differs(const WeightFormat& format, int rows, int row, int output, double got, double expected) {
  return {Code::internal, to_string(format) + ", " + std::to_string(rows) + " rows: output " +
                              std::to_string(output) + " of row " + std::to_string(row) + " is " +
                              std::to_string(got) + ", expected " + std::to_string(expected)};
}

Status check_format(const WeightFormat& format, const std::vector<float>& x,
                    const std::vector<float>& weights) {
  CheckedProduct with_tiles(Isa::amx, format), others(Isa::avx512_bf16, format);
  for (const int rows : kCheckedRowCounts) {
    const std::vector<float> got = with_tiles.run(x, weights, rows);
    const std::vector<float> expected = others.run(x, weights, rows);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < kCheckedOutputs; ++o) {
        const std::size_t at = static_cast<std::size_t>(r) * CheckedProduct::kOutputs + std::size_t(o);
        if (format.quantised()) {
          if (std::memcmp(&got[at], &expected[at], sizeof(float)) != 0)
            return differs(format, rows, r, o, got[at], expected[at]);
          continue;
        }
        double sum = 0, size = 0;
        for (int i = 0; i < kCheckedInputs; ++i) {
          const double product = static_cast<double>(x[static_cast<std::size_t>(r * kCheckedInputs + i)]) *
                                 weights[static_cast<std::size_t>(o * kCheckedInputs + i)];
          sum += product;
          size += std::abs(product);
        }
        // As many roundings to fp32 as inputs, at most.
        if (!(std::abs(got[at] - sum) <= kCheckedInputs * 0x1p-24 * size))
          return differs(format, rows, r, o, got[at], sum);
      }
    }
  }
  return {};
}

BestIsa find_best_isa() {
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.amx_refused.empty())
    return {cpu.best, "AMX is not used: the system does not give tile registers (" + cpu.amx_refused + ")"};
  if (!cpu.amx) return {cpu.best};
  if (const Status right = check_amx(); !right.ok())
    return {cpu.best, "AMX is not used: its check failed (" + right.message + ")"};
  return {Isa::amx};
}

}  // namespace

Status check_amx() {
  const auto x = checked_numbers(std::size_t{kMostCheckedRows} * kCheckedInputs, 1);
  const auto weights = checked_numbers(std::size_t{kCheckedOutputs} * kCheckedInputs, 2);
  for (const WeightFormat& format :
       {WeightFormat(DType::bf16), WeightFormat(WeightKind::int8, DType::bf16),
        WeightFormat(WeightKind::int4, DType::bf16), WeightFormat(WeightKind::int4, DType::bf16, 64)}) {
    if (const Status s = check_format(format, x, weights); !s.ok()) return s;
  }
  return {};
}

const BestIsa& best_isa() {
  static const BestIsa best = find_best_isa();
  return best;
}

}  // namespace troupe::kernels
