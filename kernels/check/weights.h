#pragma once
// Weights, and rows to multiply, that a format of few bits holds exactly, and how products take them.
#include "kernels/check/side.h"
#include "kernels/cuda/product/choose.h"
#include "kernels/e4m3.h"

namespace troupe::kernels::check {

/// outputs × inputs numbers with a deviation of about 1 / √inputs. Of codes: each group of inputs with a
/// scale has one of the largest code, so that the scale, a power of two, and all codes come out exactly.
inline Numbers exact_weights(const WeightFormat& format, int outputs, int inputs, std::uint64_t seed) {
  const auto count = static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs);
  const float unit = std::exp2(-std::round(std::log2(std::sqrt(static_cast<float>(inputs)))));
  Numbers weights = draw(count, seed, unit);
  if (!format.quantised()) return weights;
  const bool fp8 = format.fp8();
  const float most = fp8 ? 448 : format.kind == WeightKind::int8 ? 127 : 7;
  const float scale = unit * 4 / (fp8 ? 512.0f : most + 1);  // four deviations
  const int group = fp8 ? kFp8Block : format.group == 0 ? inputs : format.group;
  for (std::size_t i = 0; i < count; ++i) {
    const float code = std::clamp(weights[i] / scale, -most, most);
    weights[i] = scale * (fp8 ? e4m3_to_float(float_to_e4m3(code)) : std::nearbyint(code));
    if (i % static_cast<std::size_t>(inputs) % static_cast<std::size_t>(group) == 0)
      weights[i] = i / static_cast<std::size_t>(group) % 2 == 0 ? scale * most : -scale * most;
  }
  return weights;
}

/// How a side stores a weight of the format: the CPU in the type of the activations, where the numbers are
/// the same. Its own products of codes would make codes of the rows too.
inline WeightFormat stored_as(Side<Cuda>&, const WeightFormat& format) { return format; }
inline WeightFormat stored_as(Side<Cpu>&, const WeightFormat& format) { return format.activations; }

template <class D>
Matrix exact_matrix(Side<D>& side, const WeightFormat& format, int outputs, int inputs, std::uint64_t seed) {
  return side.packed(stored_as(side, format), outputs, inputs, exact_weights(format, outputs, inputs, seed));
}

/// Rows with a deviation of about 1. Beside fp8 weights they are codes of fp8 with a scale of a power of two.
inline Numbers exact_row_numbers(const WeightFormat& format, int rows, int inputs, std::uint64_t seed) {
  Numbers numbers = draw(static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs), seed);
  if (!format.fp8()) return numbers;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = e4m3_to_float(float_to_e4m3(std::clamp(numbers[i] * 128, -448.0f, 448.0f))) / 128;
    if (i % static_cast<std::size_t>(inputs) % kFp8Block == 0) numbers[i] = 3.5f;
  }
  return numbers;
}

template <class D>
void* exact_rows(Side<D>& side, const WeightFormat& format, int rows, int inputs, std::uint64_t seed) {
  return side.rows(format.activations, rows, inputs, exact_row_numbers(format, rows, inputs, seed));
}

/// Of fp32 sums in another order; tensor cores keep fewer bits of a sum of fp8 products.
inline Bound sums(const WeightFormat& format) {
  return {0, format.fp8() ? 4e-3 : format == WeightFormat(DType::f32) ? 2e-5 : 3e-4};
}
/// Of two products with a rounding between them; beside fp8 weights that rounding is one to 4 bits.
inline Bound between(const WeightFormat& format) {
  return format.fp8() ? Bound{0, 0.05} : rounded_between(format.activations);
}

/// What to avoid so that a product does not run this way.
std::optional<KernelWay> avoidable_product(cuda::LinearWay way);
std::function<TakenWay(const cuda::GpuTraits&)> way_of_product(const cuda::LinearShape& shape);

}  // namespace troupe::kernels::check
