// fp8 on the GPU: codes and scales of weights and of activations bit for bit those of quantize.h and e4m3.h,
// and products beside sums in double precision over these codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/add_rms_norm.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/device_under_test.h"
#include "kernels/drawn_numbers.h"
#include "kernels/e4m3.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"
#include "kernels/quantise_rows.h"
#include "kernels/quantize.h"

namespace troupe::kernels::cuda {
namespace {

constexpr WeightFormat kFp8{WeightKind::fp8, DType::bf16};

/// (outputs, inputs) numbers as codes, with a scale for `together` outputs × kFp8Block inputs: kFp8Block of
/// weights, 1 of activations.
struct Coded {
  int inputs, together, blocks;
  std::vector<std::uint8_t> codes;  // (outputs, inputs)
  std::vector<float> scales;        // (outputs / together, blocks)

  Coded(int outputs, int inputs, int together, const std::vector<float>& numbers)
      : inputs(inputs), together(together), blocks(coded_blocks(inputs)), codes(numbers.size()) {
    for (int first = 0; first < outputs; first += together) {
      for (int begin = 0; begin < inputs; begin += kFp8Block) {
        const int last = std::min(outputs, first + together), end = std::min(inputs, begin + kFp8Block);
        float largest = 0;
        for (int o = first; o < last; ++o) {
          for (int i = begin; i < end; ++i) largest = larger_magnitude(largest, numbers[index(o, i)]);
        }
        const float scale = scale_for(kFp8, largest);
        scales.push_back(scale);
        for (int o = first; o < last; ++o) {
          for (int i = begin; i < end; ++i) codes[index(o, i)] = fp8_code_of(numbers[index(o, i)], scale);
        }
      }
    }
  }
  std::size_t index(int o, int i) const { return std::size_t(o) * std::size_t(inputs) + std::size_t(i); }
  float scale(int o, int block) const { return scales[std::size_t(o / together * blocks + block)]; }
  double code(int o, int i) const { return double(e4m3_to_float(codes[index(o, i)])); }
};

/// Row r of x times row o of the weights; `size` gets the sum of the magnitudes.
double dot(const Coded& weights, int o, const Coded& x, int r, double& size) {
  double sum = 0;
  size = 0;
  for (int b = 0; b < weights.blocks; ++b) {
    const double factor = double(x.scale(r, b)) * double(weights.scale(o, b));
    for (int i = b * kFp8Block; i < std::min(weights.inputs, (b + 1) * kFp8Block); ++i) {
      const double product = weights.code(o, i) * x.code(r, i) * factor;
      sum += product;
      size += std::abs(product);
    }
  }
  return sum;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

class Fp8 : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<DeviceUnderTest>(shared_cuda(false));
  }

  /// Codes are not compared where the scale is a NaN.
  static void expect_matrix(const Matrix& matrix, const Memory& memory, const Coded& expected, Place place,
                            int first, int outputs) {
    const auto* bytes = memory.host<std::uint8_t>();
    const auto* scales =
        reinterpret_cast<const float*>(bytes + weight_bytes(matrix.format, matrix.outputs, matrix.inputs));
    const int pitch = coded_stride(matrix.inputs), eights = padded(matrix.outputs) / kFp8ScaleOutputs;
    int failures = 0;
    for (int o = 0; o < outputs; ++o) {
      const int row = placed_row(place, first, o);
      for (int b = 0; b < expected.blocks; ++b) {
        const float scale = scales[b * eights + row / kFp8ScaleOutputs];
        if (!same(scale, expected.scale(o, b)) && ++failures <= 3)
          ADD_FAILURE() << "output " << o << ", block " << b << ": scale " << scale;
      }
      for (int i = 0; i < pitch; ++i) {
        const int code = bytes[std::size_t(row) * std::size_t(pitch) + std::size_t(i)];
        if (i < matrix.inputs && std::isnan(expected.scale(o, i / kFp8Block))) continue;
        const int wanted = i < matrix.inputs ? expected.codes[expected.index(o, i)] : 0;
        if (code != wanted && ++failures <= 3)
          ADD_FAILURE() << "output " << o << ", input " << i << ": code " << code << ", not " << wanted;
      }
    }
    ASSERT_EQ(failures, 0);
  }

  std::unique_ptr<DeviceUnderTest> device_;
};

/// Some magnitudes apart, with zeros, ties of e4m3 and a block of zeros.
std::vector<float> numbers_of(int rows, int columns, DType dtype, unsigned seed) {
  std::vector<float> numbers = random_floats(std::size_t(rows) * std::size_t(columns), seed, 0.05f);
  std::mt19937 random(seed);
  for (float& v : numbers) {
    if (random() % 50 == 0) v *= 100;
    if (random() % 20 == 0) v = random() % 2 == 0 ? 0.0f : -0.0f;
    v = rounded_to(dtype, v);
  }
  for (int i = 0; i < std::min(columns, kFp8Block); ++i) {
    numbers[std::size_t(i)] = rounded_to(dtype, i == 0 ? 448.0f : 1.0f + float(i) / 16);
    if (rows > 1) numbers[std::size_t(columns + i)] = 0;
  }
  return numbers;
}

TEST_F(Fp8, RowsBitForBit) {
  for (const DType dtype : all_dtypes()) {
    for (const int rows : {1, 3, 70}) {
      for (const int columns : {33, 128, 576, 1000, 1280, 2560}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(rows) + " x " +
                     std::to_string(columns));
        const std::vector<float> numbers = numbers_of(rows, columns, dtype, 3);
        const Rows x(*device_, dtype, rows, columns, numbers);
        Memory memory(*device_, coded_bytes(rows, columns));
        std::memset(memory.change(), 0x5a, memory.bytes());
        QuantiseRows op{.x = x.data(), .dtype = dtype, .rows = rows, .cols = columns};
        lay_out(op, memory.as());
        device_->call([&] { run(device_->cuda(), op); });
        const Coded expected(rows, columns, 1, numbers);
        const auto* codes = memory.host<std::uint8_t>();
        const auto* scales = reinterpret_cast<const float*>(codes + rows * coded_stride(columns));
        for (int r = 0; r < rows; ++r) {
          for (int b = 0; b < expected.blocks; ++b)
            ASSERT_EQ(scales[r * expected.blocks + b], expected.scale(r, b)) << r << ", block " << b;
          for (int i = 0; i < coded_stride(columns); ++i) {
            ASSERT_EQ(codes[r * coded_stride(columns) + i],
                      i < columns ? expected.codes[expected.index(r, i)] : 0)
                << r << ", " << i;
          }
        }
      }
    }
  }
}

TEST_F(Fp8, ANormsCodesAreThoseOfItsRows) {
  for (const DType dtype : all_dtypes()) {
    for (const int columns : {33, 576, 2560, 9000}) {  // 9,000: more than the kernel holds in registers
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(columns));
      const int rows = 3;
      std::vector<float> numbers = random_floats(std::size_t(rows * columns), 2),
                         weight = random_floats(std::size_t(columns), 3);
      numbers[std::size_t(columns + columns - 1)] = INFINITY;
      for (float& w : weight) w = rounded_to(dtype, w);
      Rows residual(*device_, DType::f32, rows, columns, numbers), out(*device_, dtype, rows, columns);
      const Rows weights(*device_, DType::f32, 1, columns, weight);
      AddRmsNorm norm{.out = out.data(),
                      .residual = residual.floats(),
                      .weight = weights.floats(),
                      .dtype = dtype,
                      .rows = rows,
                      .cols = columns};
      QuantiseRows quantise{.x = out.data(), .dtype = dtype, .rows = rows, .cols = columns},
          of_norm = quantise;
      const Memory expected(*device_, coded_bytes(rows, columns)), alone(*device_, expected.bytes()),
          beside(*device_, expected.bytes());
      lay_out(quantise, expected.as());
      run(*device_, norm);
      device_->call([&] { run(device_->cuda(), quantise); });
      const std::string plain(reinterpret_cast<const char*>(out.row(0)), std::size_t(rows) * out.row_bytes());
      for (const Memory* memory : {&alone, &beside}) {
        lay_out(of_norm, memory->as());
        norm.codes = of_norm.codes;
        norm.scales = of_norm.scales;
        norm.out = memory == &alone ? nullptr : out.data();
        run(*device_, norm);
        EXPECT_EQ(std::memcmp(memory->host(), expected.host(), expected.bytes()), 0);
      }
      EXPECT_EQ(std::memcmp(out.row(0), plain.data(), plain.size()), 0);
    }
  }
}

TEST_F(Fp8, WeightsOfAnyOrderDtypeAndPlaceBitForBit) {
  for (const auto& [outputs, inputs] :
       std::vector<std::array<int, 2>>{{77, 33}, {130, 576}, {300, 1000}, {128, 1280}}) {
    for (const DType dtype : all_dtypes()) {
      const std::vector<float> numbers = numbers_of(outputs, inputs, dtype, 4);
      const Coded expected(outputs, inputs, kFp8Block, numbers);
      for (const bool transposed : {false, true}) {
        std::vector<std::byte> source(numbers.size() * size_of(dtype));
        for (int o = 0; o < outputs; ++o) {
          for (int i = 0; i < inputs; ++i) {
            const int at = transposed ? i * outputs + o : o * inputs + i;
            store_element(source.data(), dtype, std::size_t(at), numbers[expected.index(o, i)]);
          }
        }
        for (const Place place : {Place::rows, Place::gate, Place::up}) {
          SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs) + " " + to_string(dtype));
          const int first = place == Place::rows ? 40 : 0;
          const int all = place == Place::rows ? outputs + first : gate_up_outputs(outputs);
          const Memory memory(*device_, matrix_bytes(kFp8, all, inputs));
          const Matrix matrix{memory.as(), kFp8, all, inputs};
          run(*device_, Pack{.into = matrix,
                             .source = source.data(),
                             .source_dtype = dtype,
                             .transposed = transposed,
                             .place = place,
                             .first = first,
                             .outputs = outputs});
          expect_matrix(matrix, memory, expected, place, first, outputs);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A part of a joined tensor, which begins within a block of outputs; with a NaN among codes and one among
// scales.
TEST_F(Fp8, StoredCodesAreTakenAsTheyAre) {
  for (const DType dtype : all_dtypes()) {
    for (const auto& [outputs, inputs, before] :
         std::vector<std::array<int, 3>>{{77, 33, 24}, {300, 576, 0}, {200, 1000, 120}, {8, 128, 8}}) {
      for (const Place place : {Place::rows, Place::gate, Place::up}) {
        SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs) + " " + to_string(dtype));
        const int tensor_outputs = before + outputs + 5, stride = inputs + 3;
        const std::vector<float> numbers = random_floats(std::size_t(tensor_outputs * inputs), 4, 0.05f);
        Coded tensor(tensor_outputs, inputs, kFp8Block, numbers);
        for (float& scale : tensor.scales) scale = rounded_to(dtype, scale);
        tensor.scales.front() = INFINITY;
        std::vector<std::uint8_t> codes(std::size_t(tensor_outputs * stride), 0x7f);
        for (int o = 0; o < tensor_outputs; ++o)
          std::memcpy(codes.data() + o * stride, tensor.codes.data() + tensor.index(o, 0),
                      std::size_t(inputs));
        const int bad = before + outputs - 1;  // an output with a NaN in its last block
        codes[std::size_t(bad * stride + inputs - 1)] = 0xff;
        std::vector<std::byte> scales(tensor.scales.size() * size_of(dtype));
        for (std::size_t i = 0; i < tensor.scales.size(); ++i)
          store_element(scales.data(), dtype, i, tensor.scales[i]);
        const MemoryBytes code_file(codes.data()), scale_file(scales.data());
        const int first = place == Place::rows ? 40 : 0;
        const int all = place == Place::rows ? outputs + first : gate_up_outputs(outputs);
        const Memory memory(*device_, matrix_bytes(kFp8, all, inputs));
        const Matrix matrix{memory.as(), kFp8, all, inputs};
        run(*device_,
            Pack{.into = matrix,
                 .file = &code_file,
                 .offset = std::uint64_t(before * stride),
                 .source_stride = stride,
                 .place = place,
                 .first = first,
                 .outputs = outputs,
                 .scales = {.file = &scale_file,
                            .offset = std::uint64_t(before / kFp8Block * tensor.blocks) * size_of(dtype),
                            .dtype = dtype,
                            .stride = tensor.blocks,
                            .first_in_block = before % kFp8Block}});
        // As if each eight outputs had scales of their own.
        std::vector<float> part(numbers.begin() + before * inputs,
                                numbers.begin() + (before + outputs) * inputs);
        Coded expected(outputs, inputs, kFp8ScaleOutputs, part);
        for (int o = 0; o < outputs; ++o) {
          std::memcpy(expected.codes.data() + expected.index(o, 0),
                      tensor.codes.data() + tensor.index(before + o, 0), std::size_t(inputs));
          for (int b = 0; b < expected.blocks; ++b) {
            const float scale = tensor.scale(before + o, b);
            expected.scales[std::size_t(o / kFp8ScaleOutputs * expected.blocks + b)] =
                std::isfinite(scale) ? scale : std::nanf("");
          }
        }
        expected.scales.back() = std::nanf("");
        expect_matrix(matrix, memory, expected, place, first, outputs);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Fp8, DummiesAreTheSameDrawsQuantised) {
  const int outputs = 300, inputs = 1024;
  const std::vector<float> numbers = drawn_numbers(*device_, outputs, inputs, 17);
  const Memory memory(*device_, matrix_bytes(kFp8, gate_up_outputs(outputs), inputs));
  const Matrix matrix{memory.as(), kFp8, gate_up_outputs(outputs), inputs};
  run(*device_, FillRandom{.into = matrix, .place = Place::up, .outputs = outputs, .seed = 17});
  expect_matrix(matrix, memory, Coded(outputs, inputs, kFp8Block, numbers), Place::up, 0, outputs);
}

TEST_F(Fp8, WeightsThatAreNotFiniteMakeTheirBlocksScaleANan) {
  const int outputs = 300, inputs = 300;
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> numbers = random_floats(std::size_t(outputs * inputs), 4);
    numbers[std::size_t(140 * inputs + 299)] = bad;
    const Memory memory(*device_, matrix_bytes(kFp8, outputs, inputs));
    const Matrix matrix{memory.as(), kFp8, outputs, inputs};
    run(*device_,
        Pack{.into = matrix, .source = numbers.data(), .source_dtype = DType::f32, .outputs = outputs});
    const Coded expected(outputs, inputs, kFp8Block, numbers);
    ASSERT_TRUE(std::isnan(expected.scale(140, 2)));
    expect_matrix(matrix, memory, expected, Place::rows, 0, outputs);
  }
}

struct Product {
  const char* name;
  Ending ending;
  std::vector<int> group_rows;
  int outputs, inputs;  // of gate|up: the activation's
  bool gathered = false;
};

class Fp8Products : public testing::TestWithParam<Product> {
 protected:
  const Product& c() const { return GetParam(); }
  bool pairs() const { return c().ending == Ending::swiglu; }
  bool wide() const { return c().ending == Ending::add || c().ending == Ending::store_f32; }
  int matrix_outputs() const { return pairs() ? gate_up_outputs(c().outputs) : c().outputs; }
  std::size_t stride() const { return matrix_bytes(kFp8, matrix_outputs(), c().inputs); }
  int groups() const { return static_cast<int>(c().group_rows.size()); }

  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<DeviceUnderTest>(shared_cuda(false));
    for (const int rows : c().group_rows) offsets_.push_back(offsets_.back() + rows);
    rows_ = offsets_.back();
    x_rows_ = c().gathered ? rows_ / 2 + 1 : rows_;
    std::mt19937 random(3);
    for (int p = 0; p < rows_; ++p) {
      gather_.push_back(c().gathered ? int(random() % unsigned(x_rows_)) : p);
      scale_.push_back(0.25f + float(random() % 1000) / 1000);
    }
    x_ = numbers_of(x_rows_, c().inputs, DType::bf16, 5);
    weights_ = std::make_unique<Memory>(*device_, stride() * std::size_t(groups()));
    for (int g = 0; g < groups(); ++g) {
      pack(g, pairs() ? Place::gate : Place::rows, 20u + unsigned(g));
      if (pairs()) pack(g, Place::up, 120u + unsigned(g));
    }
  }
  void pack(int group, Place place, unsigned seed) {
    const std::vector<float> numbers = random_floats(std::size_t(c().outputs * c().inputs), seed, 0.05f);
    run(*device_, Pack{.into = matrix(group),
                       .source = numbers.data(),
                       .source_dtype = DType::f32,
                       .place = place,
                       .outputs = c().outputs});
    made_.emplace_back(c().outputs, c().inputs, kFp8Block, numbers);
  }
  void check(const char* way, double relative, const std::function<void(Cuda&, const Linear&)>& run_it);
  Matrix matrix(int group) const {
    return {weights_->as<std::byte>() + std::size_t(group) * stride(), kFp8, matrix_outputs(), c().inputs};
  }

  std::unique_ptr<DeviceUnderTest> device_;
  int rows_ = 0, x_rows_ = 0;
  std::vector<std::int32_t> offsets_{0}, gather_;
  std::vector<float> x_, scale_;
  std::unique_ptr<Memory> weights_;
  std::vector<Coded> made_;  // of each group, or of its gate and up
};

// The tensor cores of wgmma add up a block of inputs with about 14 bits.
TEST_P(Fp8Products, EveryWayEqualsSumsInDoublePrecision) {
  const GpuTraits gpu = traits_of(device_->cuda());
  LinearShape shape;
  check("generic", 1e-5, [](Cuda& device, const Linear& l) { run_generic(device, l); });
  check("stream", 1e-5, [&](Cuda& device, const Linear& l) {
    shape = shape_of(l);
    run_stream(device, l, stream_plan(shape, gpu));
  });
  GpuTraits invariant = gpu;
  invariant.batch_invariant = true;
  check("batch-invariant stream", 1e-5,
        [&](Cuda& device, const Linear& l) { run_stream(device, l, stream_plan(shape, invariant)); });
  for (const int kib : {99, 163, 227}) {
    GpuTraits like = gpu;
    like.block_shared_bytes = std::min(gpu.block_shared_bytes, kib << 10);
    const std::string name = "tiles for " + std::to_string(kib) + " KiB";
    check(name.c_str(), 1e-5, [&](Cuda& device, const Linear& l) {
      run_stream(device, l, streaming::many_rows_plan(shape, like));
    });
  }
  check("chosen", 0x1p-10, [&](Cuda& device, const Linear& l) {
    Linear plain = l;
    if (groups() == 1 && !c().gathered) plain.x_codes = nullptr;  // run() makes them
    run(device, plain);
  });
  if (!gpu.features.fp8) return;
  check("chosen for an L20", 1e-5, [](Cuda& device, const Linear& l) {
    device.sync();
    Cuda& ada = cuda_like("L20");
    ASSERT_FALSE(ada.features().wgmma);
    run(ada, l);
    ada.sync();
  });
  if (!gpu.features.wgmma) return;
  int tiles = 0;
  for (int tile = 0; tile < static_cast<int>(std::size(kWgmmaTiles)); ++tile) {
    if (!kWgmmaTiles[tile].fp8 || wgmma_cycles(kWgmmaTiles[tile], shape, gpu.multiprocessors) < 0) continue;
    const std::string name = "tile " + std::to_string(tile);
    check(name.c_str(), 0x1p-10, [&](Cuda& device, const Linear& l) { run_wgmma(device, l, tile); });
    ++tiles;
  }
  EXPECT_GE(tiles, 3);
}

void Fp8Products::check(const char* way, double relative,
                        const std::function<void(Cuda&, const Linear&)>& run_it) {
  SCOPED_TRACE(way);
  const std::vector<float> before = random_floats(std::size_t(rows_ * c().outputs), 8);
  Rows out(*device_, wide() ? DType::f32 : DType::bf16, rows_, c().outputs, before);
  const Rows x(*device_, DType::bf16, x_rows_, c().inputs, x_);
  Memory coded(*device_, coded_bytes(x_rows_, c().inputs));
  QuantiseRows quantise{.x = x.data(), .rows = x_rows_, .cols = c().inputs};
  lay_out(quantise, coded.as());
  Linear linear{.weight = matrix(0),
                .x = x.data(),
                .x_codes = quantise.codes,
                .x_scales = quantise.scales,
                .rows = rows_,
                .ending = c().ending,
                .out = out.data(),
                .scale = device_->put(scale_)};
  if (groups() > 1 || c().gathered) {
    linear.groups = {.offsets = device_->put(offsets_),
                     .gather = c().gathered ? device_->put(gather_) : nullptr,
                     .count = groups(),
                     .weight_stride = stride()};
  }
  device_->call([&] {
    run(device_->cuda(), quantise);
    run_it(device_->cuda(), linear);
  });
  const Coded x_coded(x_rows_, c().inputs, 1, x_);
  int failures = 0;
  std::mt19937 random(9);
  for (int group = 0; group < groups(); ++group) {
    for (int p = offsets_[std::size_t(group)]; p < offsets_[std::size_t(group) + 1]; ++p) {
      for (int n = 0; n < 40; ++n) {
        const int o = n < 4   ? n
                      : n < 8 ? c().outputs - 1 - (n - 4)
                              : static_cast<int>(random() % unsigned(c().outputs));
        const int row = gather_[std::size_t(p)];
        const auto which = std::size_t(pairs() ? 2 * group : group);
        double size = 0, want = dot(made_[which], o, x_coded, row, size), allowed = relative * size;
        if (pairs()) {
          double up_size = 0;
          const double gate = want, up = dot(made_[which + 1], o, x_coded, row, up_size);
          want = gate / (1 + std::exp(-gate)) * up;
          allowed = relative * (size * std::abs(up) + up_size * std::abs(gate)) + 1e-6;
        }
        if (c().ending == Ending::store_scaled) want *= double(scale_[std::size_t(p)]);
        if (c().ending == Ending::add) want += double(before[std::size_t(p * c().outputs + o)]);
        allowed += (wide() ? 1e-6 : 0x1p-8) * std::abs(want);
        const auto got = double(out.at(p, o));
        if (!(std::abs(got - want) <= allowed) && ++failures <= 3)
          ADD_FAILURE() << "row " << p << ", output " << o << ": " << got << " instead of " << want;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Fp8Products,
    testing::Values(Product{"add_1", Ending::add, {1}, 1024, 2048},
                    Product{"add_9", Ending::add, {9}, 1024, 2048},
                    Product{"add_130", Ending::add, {130}, 256, 1024},
                    Product{"swiglu_1", Ending::swiglu, {1}, 384, 1024},
                    Product{"swiglu_64", Ending::swiglu, {64}, 384, 1024},
                    Product{"store_f32_3", Ending::store_f32, {3}, 1000, 1024},
                    Product{"add_700", Ending::add, {700}, 1312, 2560},
                    Product{"swiglu_300", Ending::swiglu, {300}, 416, 2688},
                    Product{"odd_7", Ending::add, {7}, 72, 576},
                    Product{"odd_swiglu_70", Ending::swiglu, {70}, 40, 33},
                    Product{"experts_gate_up", Ending::swiglu, {3, 0, 17, 1, 0, 9}, 768, 1280, true},
                    Product{"experts_down", Ending::store_scaled, {3, 0, 17, 1, 0, 9}, 1280, 768},
                    Product{"many_experts_down", Ending::store_scaled, {40, 150, 0, 1, 64, 129}, 640, 192}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(Fp8, ARowWithANumberThatIsNotFiniteIsNanAndNoOtherIs) {
  const int rows = 5, outputs = 96, inputs = 300;
  const std::vector<float> numbers = random_floats(std::size_t(outputs * inputs), 6, 0.05f);
  const Weight weight(*device_, kFp8, outputs, inputs, numbers);
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    Rows x(*device_, DType::bf16, rows, inputs, random_floats(std::size_t(rows * inputs), 7));
    x.set(3, 299, bad);
    Rows out(*device_, DType::f32, rows, outputs);
    device_->call([&] {
      run(device_->cuda(), Linear{.weight = weight.matrix,
                                  .x = x.data(),
                                  .rows = rows,
                                  .ending = Ending::store_f32,
                                  .out = out.data()});
    });
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < outputs; ++o) EXPECT_EQ(std::isnan(out.at(r, o)), r == 3) << r << ", " << o;
    }
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda
