#pragma once
// What every op's test shares: one device per instruction set of this machine, matrices made from floats,
// and the dtypes' rounding for references in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/cpu.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels {

inline std::vector<DType> all_dtypes() { return {DType::bf16, DType::f16, DType::f32}; }

/// Unit of rounding of a dtype: half the distance from 1 to the next value.
inline double rounding_unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

inline float rounded_to(DType dtype, float value) {
  return dtype == DType::bf16  ? bf16_to_float(float_to_bf16(value))
         : dtype == DType::f16 ? f16_to_float(float_to_f16(value))
                               : value;
}

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

/// Device memory as the ops want it, seen from a test.
class Memory {
 public:
  Memory(Cpu& device, std::size_t bytes)
      : buffer_(std::move(Buffer<Cpu>::make(device, bytes, "a test").value())) {}
  template <class T = void>
  T* as() const {
    return static_cast<T*>(buffer_.data());
  }

 private:
  Buffer<Cpu> buffer_;
};

/// rows × cols numbers of a dtype in padded rows.
class Rows {
 public:
  Rows(Cpu& device, DType dtype, int rows, int cols)
      : memory_(device,
                size_of(dtype) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(padded(cols))),
        dtype_(dtype),
        rows_(rows),
        cols_(cols) {}
  Rows(Cpu& device, DType dtype, int rows, int cols, const std::vector<float>& values)
      : Rows(device, dtype, rows, cols) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) set(r, c, values[static_cast<std::size_t>(r * cols + c)]);
    }
  }
  void* data() const { return memory_.as(); }
  float* floats() const { return memory_.as<float>(); }
  float at(int r, int c) const { return load_element(memory_.as(), dtype_, index(r, c)); }
  void set(int r, int c, float value) { store_element(memory_.as(), dtype_, index(r, c), value); }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  std::size_t row_bytes() const { return size_of(dtype_) * static_cast<std::size_t>(padded(cols_)); }
  const std::byte* row(int r) const {
    return memory_.as<std::byte>() + static_cast<std::size_t>(r) * row_bytes();
  }

 private:
  std::size_t index(int r, int c) const {
    return static_cast<std::size_t>(r) * static_cast<std::size_t>(padded(cols_)) +
           static_cast<std::size_t>(c);
  }
  Memory memory_;
  DType dtype_;
  int rows_, cols_;
};

/// A packed weight and the values it was made of (already rounded to the dtype).
struct Weight {
  Weight(Cpu& device, DType dtype, int outputs, int inputs, std::vector<float> values)
      : memory(device, matrix_bytes(dtype, outputs, inputs)),
        matrix{memory.as(), dtype, outputs, inputs},
        values(std::move(values)) {
    for (float& v : this->values) v = rounded_to(dtype, v);
    run(device,
        Pack{.into = matrix, .source = this->values.data(), .source_dtype = DType::f32, .outputs = outputs});
  }
  double dot(int output, const std::function<double(int)>& x) const {
    double sum = 0;
    for (int i = 0; i < matrix.inputs; ++i) {
      sum += static_cast<double>(values[static_cast<std::size_t>(output * matrix.inputs + i)]) * x(i);
    }
    return sum;
  }
  Memory memory;
  Matrix matrix;
  std::vector<float> values;
};

/// Runs a test body for each instruction set of the machine and each dtype.
class OpTest : public testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  Cpu& device() { return device_; }
  std::unique_ptr<Cpu> device_with(int threads) {
    return std::make_unique<Cpu>(CpuOptions{.threads = threads, .pin = false, .isa = isa()});
  }

 private:
  Cpu device_{CpuOptions{.threads = 2, .pin = false, .isa = std::get<0>(GetParam())}};
};

#define TROUPE_ALL_DEVICES(suite)                                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                                                \
      Cpu, suite, testing::Combine(testing::ValuesIn(usable_isas()), testing::ValuesIn(all_dtypes())),     \
      [](const auto& info) {                                                                               \
        return std::string(to_string(std::get<0>(info.param))) + "_" + to_string(std::get<1>(info.param)); \
      })

}  // namespace troupe::kernels
