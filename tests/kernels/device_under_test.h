#pragma once
// Shared by all tests of ops: a device per instruction set of this machine and one for its GPU, matrices made
// from floats, and rounding to a dtype for references in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/cpu.h"
#include "gpu/cuda.h"
#include "gpu/gpu_like.h"
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

/// A CPU or a GPU behind one interface. run(device, op) runs an op on either. Memory that a test reads or
/// writes (Memory, Rows) has a mirror on the host.
class DeviceUnderTest {
 public:
  explicit DeviceUnderTest(std::unique_ptr<Cpu> cpu) : cpu_(std::move(cpu)) {}
  explicit DeviceUnderTest(Cuda& cuda) : cuda_(&cuda) {}
  ~DeviceUnderTest() {
    for (void* memory : put_) free(memory);
  }
  DeviceUnderTest(const DeviceUnderTest&) = delete;
  DeviceUnderTest& operator=(const DeviceUnderTest&) = delete;

  bool is_cuda() const { return cuda_ != nullptr; }
  Cpu& cpu() { return *cpu_; }
  Cuda& cuda() { return *cuda_; }

  void* alloc(std::size_t bytes) { return cuda_ ? cuda_->alloc(bytes) : cpu_->alloc(bytes); }
  void free(void* memory) { cuda_ ? cuda_->free(memory) : cpu_->free(memory); }
  void upload(void* to, const void* from, std::size_t bytes) {
    if (cuda_)
      cuda_->upload(to, from, bytes);
    else
      cpu_->upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) {
    if (cuda_) {
      cuda_->download(to, from, bytes);
      cuda_->sync();
    } else {
      cpu_->download(to, from, bytes);
    }
  }

  /// Copies host values to device memory, which is freed with this object.
  template <class T>
  T* put(const T* values, std::size_t count) {
    void* memory = alloc(count * sizeof(T));
    upload(memory, values, count * sizeof(T));
    put_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    return put(values.data(), values.size());
  }

  /// Uploads changed mirrors, calls `function`, waits for the device and marks all mirrors as stale.
  template <class Function>
  void call(Function&& function);

 private:
  friend class Memory;
  std::unique_ptr<Cpu> cpu_;
  Cuda* cuda_ = nullptr;
  std::vector<void*> put_;
  std::vector<class Memory*> mirrored_;
  std::uint64_t runs_ = 0;  // a mirror made before the last run is stale
};

/// Device memory that a test can read and write: as() is the device pointer for ops, host() and change() are
/// the mirror. Call host() again after every op.
class Memory {
 public:
  Memory(DeviceUnderTest& device, std::size_t bytes) : device_(device), bytes_(bytes) {
    data_ = device.alloc(bytes);
    if (data_ == nullptr) throw std::runtime_error("no memory for a test");
    device.mirrored_.push_back(this);
  }
  ~Memory() {
    std::erase(device_.mirrored_, this);
    device_.free(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// For reading.
  template <class T = std::byte>
  const T* host() const {
    refresh();
    return reinterpret_cast<const T*>(device_.is_cuda() ? mirror_.data() : data_);
  }
  /// For writing; uploaded before the next op.
  template <class T = std::byte>
  T* change() {
    refresh();
    changed_ = true;
    return reinterpret_cast<T*>(device_.is_cuda() ? static_cast<void*>(mirror_.data()) : data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  friend class DeviceUnderTest;
  void refresh() const {
    if (!device_.is_cuda() || (!mirror_.empty() && seen_ == device_.runs_)) return;
    mirror_.resize(bytes_);
    device_.download(mirror_.data(), data_, bytes_);
    seen_ = device_.runs_;
  }
  void flush() {
    if (changed_ && device_.is_cuda()) device_.upload(data_, mirror_.data(), bytes_);
    changed_ = false;
  }

  DeviceUnderTest& device_;
  std::size_t bytes_;
  void* data_ = nullptr;
  bool changed_ = false;
  mutable std::vector<std::byte> mirror_;
  mutable std::uint64_t seen_ = 0;
};

template <class Function>
void DeviceUnderTest::call(Function&& function) {
  for (Memory* memory : mirrored_) memory->flush();
  function();
  if (cuda_) cuda_->sync();
  ++runs_;
}

template <class Op>
void run(DeviceUnderTest& device, const Op& op) {
  device.call([&] {
    if (device.is_cuda())
      run(device.cuda(), op);
    else
      run(device.cpu(), op);
  });
}

/// rows × cols numbers of a dtype in padded rows.
class Rows {
 public:
  Rows(DeviceUnderTest& device, DType dtype, int rows, int cols)
      : memory_(device,
                size_of(dtype) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(padded(cols))),
        dtype_(dtype),
        rows_(rows),
        cols_(cols) {}
  Rows(DeviceUnderTest& device, DType dtype, int rows, int cols, const std::vector<float>& values)
      : Rows(device, dtype, rows, cols) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) set(r, c, values[static_cast<std::size_t>(r * cols + c)]);
    }
  }
  void* data() const { return memory_.as(); }
  float* floats() const { return memory_.as<float>(); }
  /// Address of row r on the device.
  const void* device_row(int r) const {
    return static_cast<const std::byte*>(data()) + static_cast<std::size_t>(r) * row_bytes();
  }
  float at(int r, int c) const { return load_element(memory_.host(), dtype_, index(r, c)); }
  void set(int r, int c, float value) { store_element(memory_.change(), dtype_, index(r, c), value); }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  std::size_t row_bytes() const { return size_of(dtype_) * static_cast<std::size_t>(padded(cols_)); }
  const std::byte* row(int r) const { return memory_.host() + static_cast<std::size_t>(r) * row_bytes(); }

 private:
  std::size_t index(int r, int c) const {
    return static_cast<std::size_t>(r) * static_cast<std::size_t>(padded(cols_)) +
           static_cast<std::size_t>(c);
  }
  Memory memory_;
  DType dtype_;
  int rows_, cols_;
};

/// A packed weight and its values, rounded to the activations' dtype.
struct Weight {
  Weight(DeviceUnderTest& device, const WeightFormat& format, int outputs, int inputs,
         std::vector<float> values)
      : memory(device, matrix_bytes(format, outputs, inputs)),
        matrix{memory.as(), format, outputs, inputs},
        values(std::move(values)) {
    for (float& v : this->values) v = rounded_to(format.activations, v);
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

/// Where a test body runs: on the CPU with one of its instruction sets, or on the GPU.
struct Where {
  bool cuda = false;
  Isa isa{};
  const char* like = nullptr;  ///< the GPU, taken for this card: see cuda_like()
};

inline std::vector<Where> everywhere() {
  std::vector<Where> all;
  for (const Isa isa : usable_isas()) all.push_back({.isa = isa});
  all.push_back({.cuda = true});
  return all;
}

inline std::string to_string(Where where) {
  if (where.like != nullptr) return std::string("cuda_like_") + where.like;
  return where.cuda ? "cuda" : troupe::to_string(where.isa);
}

/// One device for the whole process, because making a CUDA context takes half a second.
inline Cuda& shared_cuda(bool batch_invariant) {
  static Cuda usual{CudaOptions{}};
  static Cuda invariant{CudaOptions{.batch_invariant = true}};
  return batch_invariant ? invariant : usual;
}

/// The GPU with the features, the shared memory and the multiprocessors of a card (gpu_like.h); one for
/// each name and process.
inline Cuda& cuda_like(const std::string& card) {
  static std::map<std::string, std::unique_ptr<Cuda>> made;
  std::unique_ptr<Cuda>& device = made[card];
  if (device == nullptr) {
    const std::optional<Card> before = gpu_like();
    if (const Status named = set_gpu_like(card); !named.ok()) throw std::runtime_error(named.message);
    device = std::make_unique<Cuda>();
    set_gpu_like(before);
  }
  return *device;
}
/// With 163 and with 99 KiB of shared memory for a block, 108 and 72 multiprocessors.
inline constexpr const char* kCardsWithoutWgmma[] = {"A100", "A10"};

/// Tests of a GPU alone, by dtype.
class OnCuda : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
  DType dtype() const { return GetParam(); }
  static Cuda& usual() { return shared_cuda(false); }
  static Cuda& invariant() { return shared_cuda(true); }
};

inline std::unique_ptr<DeviceUnderTest> device_at(Where where, int threads, bool batch_invariant = false) {
  if (where.like != nullptr) return std::make_unique<DeviceUnderTest>(cuda_like(where.like));
  if (where.cuda) return std::make_unique<DeviceUnderTest>(shared_cuda(batch_invariant));
  return std::make_unique<DeviceUnderTest>(
      std::make_unique<Cpu>(CpuOptions{.threads = threads, .pin = false, .isa = where.isa}));
}

/// Runs a test body on each instruction set of the machine and on the GPU, with each dtype. Without a GPU its
/// cases are skipped and say why.
class OpTest : public testing::TestWithParam<std::tuple<Where, DType>> {
 protected:
  void SetUp() override {
    if (!where().cuda) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
  Where where() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  DeviceUnderTest& device() {
    if (!device_) device_ = device_at(where(), 2);
    return *device_;
  }
  /// A device with that many threads; on a GPU `threads` has no effect.
  std::unique_ptr<DeviceUnderTest> device_with(int threads) { return device_at(where(), threads); }
  /// A device on which a row's bits depend on that row alone: any CPU device, a GPU in batch-invariant mode.
  DeviceUnderTest& invariant_device() {
    if (!invariant_) invariant_ = device_at(where(), 2, true);
    return *invariant_;
  }

 private:
  std::unique_ptr<DeviceUnderTest> device_, invariant_;
};

#define TROUPE_ALL_DEVICES(suite)                                                                    \
  INSTANTIATE_TEST_SUITE_P(                                                                          \
      On, suite, testing::Combine(testing::ValuesIn(everywhere()), testing::ValuesIn(all_dtypes())), \
      [](const auto& info) {                                                                         \
        return to_string(std::get<0>(info.param)) + "_" + to_string(std::get<1>(info.param));        \
      })

}  // namespace troupe::kernels
