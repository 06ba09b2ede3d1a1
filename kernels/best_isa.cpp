#include "kernels/best_isa.h"

#include <cmath>
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

/// x (rows, 168) of bf16 times weights (40, 168), through tiles.
class CheckedProduct {
 public:
  CheckedProduct()
      : device_({.threads = 1, .pin = false, .isa = Isa::amx}),
        weight_{device_.alloc(matrix_bytes(DType::bf16, kCheckedOutputs, kCheckedInputs)), DType::bf16,
                kCheckedOutputs, kCheckedInputs} {}

  std::vector<float> run(const std::vector<float>& x, const std::vector<float>& weights, int rows) {
    kernels::run(device_, Pack{.into = weight_,
                               .source = weights.data(),
                               .source_dtype = DType::f32,
                               .outputs = kCheckedOutputs});
    std::vector<float> stored(static_cast<std::size_t>(rows) * kInputs), logits(std::size_t(rows) * kOutputs);
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < kCheckedInputs; ++i) {
        store_element(stored.data(), DType::bf16, static_cast<std::size_t>(r) * kInputs + std::size_t(i),
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

BestIsa find_best_isa() {
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.amx) return {cpu.best};
  if (!amx_refused().empty())
    return {cpu.best, "AMX is not used: the system does not give tile registers (" + amx_refused() + ")"};
  if (const Status right = check_amx(); !right.ok())
    return {cpu.best, "AMX is not used: its check failed (" + right.message + ")"};
  return {Isa::amx};
}

}  // namespace

Status check_amx() {
  const auto x = checked_numbers(std::size_t{kMostCheckedRows} * kCheckedInputs, 1);
  const auto weights = checked_numbers(std::size_t{kCheckedOutputs} * kCheckedInputs, 2);
  CheckedProduct product;
  for (const int rows : kCheckedRowCounts) {
    const std::vector<float> got = product.run(x, weights, rows);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < kCheckedOutputs; ++o) {
        double sum = 0, size = 0;
        for (int i = 0; i < kCheckedInputs; ++i) {
          const double one = static_cast<double>(x[static_cast<std::size_t>(r * kCheckedInputs + i)]) *
                             weights[static_cast<std::size_t>(o * kCheckedInputs + i)];
          sum += one;
          size += std::abs(one);
        }
        // As many roundings to fp32 as inputs, at most.
        const float logit = got[static_cast<std::size_t>(r) * CheckedProduct::kOutputs + std::size_t(o)];
        if (!(std::abs(logit - sum) <= kCheckedInputs * 0x1p-24 * size))
          return {Code::internal, std::to_string(rows) + " rows: output " + std::to_string(o) + " of row " +
                                      std::to_string(r) + " is " + std::to_string(logit) + ", expected " +
                                      std::to_string(sum)};
      }
    }
  }
  return {};
}

const BestIsa& best_isa() {
  static const BestIsa best = find_best_isa();
  return best;
}

}  // namespace troupe::kernels
