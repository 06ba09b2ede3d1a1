#pragma once
// What checks share: memory on either device, inputs, and the comparison of two results.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/dtype.h"
#include "kernels/check/kernel_check.h"
#include "kernels/fill_random.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels::check {

using Numbers = std::vector<float>;

/// Draws from N(0, deviation), as FillRandom makes them; every one is representable in bf16.
inline Numbers draw(std::size_t count, std::uint64_t seed, float deviation = 1) {
  const auto& quantiles = normal_quantiles();
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; i += kDrawsPerHash) {
    const std::uint64_t bits = draw_bits(seed, 0, static_cast<std::uint32_t>(i / kDrawsPerHash));
    for (std::size_t k = 0; k < kDrawsPerHash && i + k < count; ++k) {
      const float number = deviation * quantiles[bits >> (16 * k) & (kQuantiles - 1)];
      numbers[i + k] = bf16_to_float(float_to_bf16(number));
    }
  }
  return numbers;
}

/// Memory of a device that is freed with the object, and copies to and from it.
template <class D>
class Side {
 public:
  explicit Side(D& device) : device_(device) {}
  ~Side() {
    for (void* memory : taken_) device_.free(memory);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  D& device() { return device_; }

  /// Zeroed. Throws CudaError if there is not enough.
  template <class T>
  T* room(std::size_t count) {
    void* const memory = device_.alloc(std::max<std::size_t>(1, count) * sizeof(T));
    if (memory == nullptr)
      throw CudaError("there is no memory for " + std::to_string(count * sizeof(T)) + " bytes");
    taken_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    T* const memory = room<T>(values.size());
    device_.upload(memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) {
    std::vector<T> values(count);
    device_.download(values.data(), from, count * sizeof(T));
    device_.sync();
    return values;
  }

  /// Rows of padded(cols) elements.
  void* rows(DType dtype, int rows, int cols, const Numbers& values) {
    std::vector<std::byte> bytes(row_bytes(dtype, cols) * static_cast<std::size_t>(rows));
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c)
        store_element(bytes.data(), dtype, index(r, c, cols),
                      values[static_cast<std::size_t>(r) * static_cast<std::size_t>(cols) +
                             static_cast<std::size_t>(c)]);
    }
    return put(bytes);
  }
  void* rows(DType dtype, int rows, int cols) {
    return room<std::byte>(row_bytes(dtype, cols) * static_cast<std::size_t>(rows));
  }
  float* floats(int rows, int cols, const Numbers& values) {
    return static_cast<float*>(this->rows(DType::f32, rows, cols, values));
  }
  float* floats(int rows, int cols) { return static_cast<float*>(this->rows(DType::f32, rows, cols)); }
  /// Without the padding.
  Numbers numbers(DType dtype, const void* from, int rows, int cols) {
    const auto bytes =
        get(static_cast<const std::byte*>(from), row_bytes(dtype, cols) * static_cast<std::size_t>(rows));
    Numbers values;
    values.reserve(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) values.push_back(load_element(bytes.data(), dtype, index(r, c, cols)));
    }
    return values;
  }

  /// Room for `count` matrices one after the other.
  Matrix matrix(const WeightFormat& format, int outputs, int inputs, int count = 1) {
    return {room<std::byte>(matrix_bytes(format, outputs, inputs) * static_cast<std::size_t>(count)), format,
            outputs, inputs};
  }
  /// A matrix that holds `values`, outputs × inputs.
  Matrix packed(const WeightFormat& format, int outputs, int inputs, const Numbers& values) {
    const Matrix made = matrix(format, outputs, inputs);
    pack(made, Place::rows, outputs, values);
    return made;
  }
  void pack(const Matrix& into, Place place, int outputs, const Numbers& values) {
    run(device_, Pack{.into = into,
                      .source = values.data(),
                      .source_dtype = DType::f32,
                      .place = place,
                      .outputs = outputs});
    device_.sync();
  }

 private:
  static std::size_t row_bytes(DType dtype, int cols) {
    return size_of(dtype) * static_cast<std::size_t>(padded(cols));
  }
  static std::size_t index(int r, int c, int cols) {
    return static_cast<std::size_t>(r) * static_cast<std::size_t>(padded(cols)) + static_cast<std::size_t>(c);
  }

  D& device_;
  std::vector<void*> taken_;
};

/// How far a number may lie from the reference: `relative` of the reference, and `of_largest` of the largest
/// reference.
struct Bound {
  double relative = 0;
  double of_largest = 0;
};

/// Both devices round the same number once: an error of one unit of the dtype, and sums in another order.
constexpr Bound rounded_once(DType dtype) {
  return dtype == DType::bf16  ? Bound{0x1p-7, 1e-5}
         : dtype == DType::f16 ? Bound{0x1p-10, 1e-5}
                               : Bound{0, 2e-5};
}
/// A rounded number goes into another product.
constexpr Bound rounded_between(DType dtype) {
  return dtype == DType::bf16  ? Bound{0x1p-7, 0x1p-7}
         : dtype == DType::f16 ? Bound{0x1p-10, 0x1p-10}
                               : Bound{0, 5e-5};
}
inline constexpr Bound kExact{};

/// ok if every number lies within the bound. A reference without any number but 0 is a failure: it checks
/// nothing.
Status compare(const Numbers& got, const Numbers& reference, const Bound& bound);

/// ok if the bytes are equal.
template <class T>
Status compare_bytes(const std::vector<T>& got, const std::vector<T>& reference) {
  if (got.size() != reference.size())
    return failure(Code::internal,
                   std::to_string(got.size()) + " results instead of " + std::to_string(reference.size()));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &reference[i], sizeof(T)) != 0)
      return failure(Code::internal,
                     "result " + std::to_string(i) + " of " + std::to_string(got.size()) + " differs");
  }
  return {};
}

/// A check whose body runs on both devices: `body(side)` gives the numbers of side.device().
template <class Body>
std::function<Status(Cpu&, Cuda&)> on_both(Bound bound, Body body) {
  return [bound, body](Cpu& cpu, Cuda& cuda) {
    Side<Cuda> there(cuda);
    const Numbers got = body(there);
    Side<Cpu> here(cpu);
    return compare(got, body(here), bound);
  };
}

/// The way of an op that has one kernel.
inline TakenWay one_kernel(const cuda::GpuTraits&) { return {}; }

using Checks = std::vector<KernelCheck>;
// The parts of the table, in its order.
void add_row_checks(Checks& checks);
void add_exchange_checks(Checks& checks);
void add_product_checks(Checks& checks);
void add_attention_checks(Checks& checks);
void add_moe_checks(Checks& checks);
void add_sample_checks(Checks& checks);
void add_vision_checks(Checks& checks);
void add_step_checks(Checks& checks);
void add_draft_checks(Checks& checks);

}  // namespace troupe::kernels::check
