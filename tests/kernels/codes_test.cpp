// Products of quantised weights on the GPU, every way that takes them, compared with sums in double precision
// over codes and scales that this file makes on its own; and codes and scales themselves, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/device_under_test.h"
#include "kernels/drawn_numbers.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"

namespace troupe::kernels::cuda {
namespace {

/// A matrix's codes and scales by the rules in quantize.h, as plain loops; row o of `numbers` is output o.
struct Codes {
  std::vector<int> codes;     // (outputs, inputs)
  std::vector<float> scales;  // (outputs, groups)
  int groups = 1;

  Codes(const WeightFormat& format, int outputs, int inputs, const std::vector<float>& numbers) {
    const int group = format.group == 0 ? inputs : format.group;
    const float largest = format.kind == WeightKind::int4 ? 7.0f : 127.0f;
    groups = (inputs + group - 1) / group;
    for (int o = 0; o < outputs; ++o) {
      for (int begin = 0; begin < inputs; begin += group) {
        const auto at = [&](int i) { return numbers[static_cast<std::size_t>(o * inputs + i)]; };
        const int end = std::min(begin + group, inputs);
        float magnitude = 0;
        for (int i = begin; i < end; ++i) magnitude = std::max(magnitude, std::abs(at(i)));
        float scale = magnitude / largest;
        if (format.group != 0 && scale > 0) {  // its first five bits
          const int below = std::ilogb(scale) - 4;
          scale = std::scalbn(std::floor(std::scalbn(scale, -below)), below);
        }
        scales.push_back(scale);
        for (int i = begin; i < end; ++i) {
          const float code = scale > 0 ? std::nearbyint(at(i) / scale) : 0.0f;
          codes.push_back(static_cast<int>(std::min(largest, std::max(-largest, code))));
        }
      }
    }
  }
};

struct Case {
  std::string name;
  Ending ending;
  std::vector<int> group_rows;
  int outputs, inputs;  // of gate|up: the activation's
  bool gathered = false;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int rows : {1, 3, 8, 9, 16, 31, 64, 130, 333}) {
    const std::string r = std::to_string(rows);
    all.push_back({"add_" + r, Ending::add, {rows}, 1024, 2048});
    all.push_back({"swiglu_" + r, Ending::swiglu, {rows}, 384, 1024});
    all.push_back({"store_f32_" + r, Ending::store_f32, {rows}, 1000, 1024});
  }
  all.push_back({"add_2560", Ending::add, {5}, 2560, 2560});
  all.push_back({"add_3072", Ending::add, {2}, 1024, 3072});
  all.push_back({"odd", Ending::add, {7}, 72, 576});
  all.push_back({"odd_many", Ending::add, {70}, 72, 640});
  for (const std::vector<int>& rows :
       {std::vector<int>{1, 0, 1, 1, 0, 1}, std::vector<int>{3, 0, 17, 1, 0, 9},
        std::vector<int>{40, 150, 0, 1, 64, 129}}) {
    const std::string r = std::to_string(rows[0]);
    all.push_back({"experts_gate_up_" + r, Ending::swiglu, rows, 768, 1280, true});
    all.push_back({"experts_down_" + r, Ending::store_scaled, rows, 1280, 768});
    all.push_back({"experts_odd_" + r, Ending::store_scaled, rows, 1100, 448});
    all.push_back({"experts_odd_gathered_" + r, Ending::swiglu, rows, 448, 1120, true});
  }
  return all;
}

std::vector<WeightFormat> formats() {
  return {{WeightKind::int8, DType::bf16},
          {WeightKind::int4, DType::bf16},
          {WeightKind::int4, DType::bf16, 32},
          {WeightKind::int4, DType::bf16, 64},
          {WeightKind::int4, DType::bf16, 128}};
}

class CodesTest : public testing::TestWithParam<std::tuple<WeightFormat, Case>> {
 protected:
  const WeightFormat& format() const { return std::get<0>(GetParam()); }
  const Case& c() const { return std::get<1>(GetParam()); }
  bool pairs() const { return c().ending == Ending::swiglu; }
  int matrix_outputs() const { return pairs() ? gate_up_outputs(c().outputs) : c().outputs; }
  std::size_t stride() const { return matrix_bytes(format(), matrix_outputs(), c().inputs); }

  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<DeviceUnderTest>(shared_cuda(false));
    const int groups = static_cast<int>(c().group_rows.size());
    offsets_ = {0};
    for (const int rows : c().group_rows) offsets_.push_back(offsets_.back() + rows);
    rows_ = offsets_.back();
    x_rows_ = c().gathered ? rows_ / 2 + 1 : rows_;
    std::mt19937 random(3);
    for (int p = 0; p < rows_; ++p)
      gather_.push_back(static_cast<int>(random() % static_cast<unsigned>(x_rows_)));
    for (int p = 0; p < rows_; ++p) scale_.push_back(0.25f + static_cast<float>(random() % 1000) / 1000);
    x_ = random_floats(static_cast<std::size_t>(x_rows_ * c().inputs), 5);
    for (float& v : x_) v = rounded_to(DType::bf16, v);
    weights_ = std::make_unique<Memory>(*device_, stride() * static_cast<std::size_t>(groups));
    for (int g = 0; g < groups; ++g) {
      if (pairs()) {
        pack(g, Place::gate, 20 + g);
        pack(g, Place::up, 120 + g);
      } else {
        pack(g, Place::rows, 20 + g);
      }
    }
  }

  void pack(int group, Place place, int seed) {
    std::vector<float> numbers =
        random_floats(static_cast<std::size_t>(c().outputs * c().inputs), static_cast<unsigned>(seed), 0.05f);
    for (float& v : numbers) v = rounded_to(DType::bf16, v);
    for (int i = 0; i < c().inputs; ++i) numbers[static_cast<std::size_t>(c().inputs + i)] = 0;  // output 1
    run(*device_, Pack{.into = matrix(group),
                       .source = numbers.data(),
                       .source_dtype = DType::f32,
                       .place = place,
                       .outputs = c().outputs});
    made_.emplace_back(format(), c().outputs, c().inputs, numbers);
  }
  Matrix matrix(int group) const {
    return {weights_->as<std::byte>() + static_cast<std::size_t>(group) * stride(), format(),
            matrix_outputs(), c().inputs};
  }

  /// Output o of made_[which] times row p.
  double dot(std::size_t which, int p, int o) const {
    const Codes& made = made_[which];
    const int row = c().gathered ? gather_[static_cast<std::size_t>(p)] : p;
    double sum = 0;
    for (int i = 0; i < c().inputs; ++i) {
      const auto at = static_cast<std::size_t>(o * c().inputs + i);
      auto weight = static_cast<float>(made.codes[at]);
      if (format().group != 0) {
        const float scale = made.scales[static_cast<std::size_t>(o * made.groups + i / format().group)];
        weight *= scale;
      }
      sum += static_cast<double>(weight) *
             static_cast<double>(x_[static_cast<std::size_t>(row * c().inputs + i)]);
    }
    return format().group != 0 ? sum : sum * static_cast<double>(made.scales[static_cast<std::size_t>(o)]);
  }
  double expected(int group, int p, int o) const {
    const auto g = static_cast<std::size_t>(group);
    if (!pairs()) {
      const double y = dot(g, p, o);
      return c().ending == Ending::store_scaled ? y * static_cast<double>(scale_[static_cast<std::size_t>(p)])
                                                : y;
    }
    const double gate = dot(2 * g, p, o);
    return gate / (1 + std::exp(-gate)) * dot(2 * g + 1, p, o);
  }

  /// Row p, output o of the outputs that are looked at, and the sum to expect there.
  struct Expected {
    int p, o;
    double sum;
  };
  void compute_expected() {
    std::mt19937 random(9);
    for (int group = 0; group < static_cast<int>(c().group_rows.size()); ++group) {
      for (int p = offsets_[static_cast<std::size_t>(group)];
           p < offsets_[static_cast<std::size_t>(group) + 1]; ++p) {
        for (int n = 0; n < 40; ++n) {
          const int o = n < 4   ? n
                        : n < 8 ? c().outputs - 1 - (n - 4)
                                : static_cast<int>(random() % static_cast<unsigned>(c().outputs));
          expected_.push_back({p, o, expected(group, p, o)});
        }
      }
    }
  }

  bool wide() const { return c().ending == Ending::add || c().ending == Ending::store_f32; }

  /// unpacked.h: applied twice it gives the old order.
  static std::vector<float> interleaved(const std::vector<float>& rows, int cols) {
    std::vector<float> made(rows.size());
    for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(cols)) {
      for (int i = 0; i < cols; ++i) {
        const int t = i % 32 / 8, k = i % 8 / 2, e = i % 2;
        made[first + static_cast<std::size_t>(i / 32 * 32 + 8 * k + 2 * t + e)] =
            rows[first + static_cast<std::size_t>(i)];
      }
    }
    return made;
  }

  /// The outputs, row after row. `x_is_interleaved`: x is given in that order.
  template <class Run>
  std::vector<float> check(const char* way, Run&& run_it, bool x_is_interleaved = false,
                           bool interleaves_out = false) {
    const DType out_type = wide() ? DType::f32 : DType::bf16;
    const std::vector<float> before = random_floats(static_cast<std::size_t>(rows_ * c().outputs), 8);
    Rows out(*device_, out_type, rows_, c().outputs, before);
    const bool grouped = c().group_rows.size() > 1;
    Rows x(*device_, DType::bf16, x_rows_, c().inputs, x_is_interleaved ? interleaved(x_, c().inputs) : x_);
    Linear linear{.weight = matrix(0),
                  .x = x.data(),
                  .rows = rows_,
                  .x_rows = x_rows_,
                  .x_is_interleaved = x_is_interleaved,
                  .interleaves_out = interleaves_out,
                  .ending = c().ending,
                  .out = out.data(),
                  .scale = device_->put(scale_)};
    if (grouped) {
      linear.groups = {.offsets = device_->put(offsets_),
                       .gather = c().gathered ? device_->put(gather_) : nullptr,
                       .count = static_cast<int>(c().group_rows.size()),
                       .weight_stride = stride()};
    }
    device_->call([&] { run_it(device_->cuda(), linear); });
    std::vector<float> numbers;
    for (int p = 0; p < rows_; ++p) {
      for (int o = 0; o < c().outputs; ++o) numbers.push_back(out.at(p, o));
    }
    if (interleaves_out) numbers = interleaved(numbers, c().outputs);
    int failures = 0;
    for (const Expected& e : expected_) {
      const double old = c().ending == Ending::add
                             ? static_cast<double>(before[static_cast<std::size_t>(e.p * c().outputs + e.o)])
                             : 0.0;
      const double want = old + e.sum,
                   got = static_cast<double>(numbers[static_cast<std::size_t>(e.p * c().outputs + e.o)]);
      const double allowed = (wide() ? 1e-6 : 0x1p-8) * std::abs(want) + 3e-4;
      if (!(std::abs(got - want) <= allowed) && ++failures <= 3)
        ADD_FAILURE() << way << ", row " << e.p << ", output " << e.o << ": " << got << " instead of "
                      << want;
    }
    return numbers;
  }

  std::unique_ptr<DeviceUnderTest> device_;
  int rows_ = 0, x_rows_ = 0;
  std::vector<std::int32_t> offsets_, gather_;
  std::vector<float> x_, scale_;
  std::unique_ptr<Memory> weights_;
  std::vector<Codes> made_;  // of each group, or of its gate and up
  std::vector<Expected> expected_;
};

TEST_P(CodesTest, EveryWayEqualsSumsInDoublePrecision) {
  const GpuTraits gpu = traits_of(device_->cuda());
  compute_expected();
  check("generic", [](Cuda& device, const Linear& l) { run_generic(device, l); });
  check("chosen", [](Cuda& device, const Linear& l) { run(device, l); });
  LinearShape shape;
  GpuTraits small = gpu;  // any product has blocks enough for it: experts get wide ones
  small.multiprocessors = 1;
  const auto stream = [&](const GpuTraits& planned_for) {
    return check("stream", [&](Cuda& device, const Linear& l) {
      shape = shape_of(l);
      run_stream(device, l, stream_plan(shape, planned_for));
    });
  };
  const std::vector<float> narrow = stream(gpu);
  if (shape.grouped()) {
    EXPECT_EQ(stream(small), narrow) << "the order of additions is the same";
  }
  for (const int kib : {99, 163, 227}) {
    GpuTraits like = gpu;
    like.block_shared_bytes = std::min(gpu.block_shared_bytes, kib << 10);
    const std::string name = "tiles for " + std::to_string(kib) + " KiB";
    check(name.c_str(), [&](Cuda& device, const Linear& l) {
      run_stream(device, l, streaming::many_rows_plan(shape_of(l), like));
    });
  }
  if (!gpu.features.wgmma) return;
  if (unpacked_takes(shape, gpu)) {
    const auto unpacked = [](Cuda& device, const Linear& l) { run_unpacked(device, l); };
    const std::vector<float> plain = check("unpacked", unpacked);
    if (unpacked_interleaves(format())) {
      EXPECT_EQ(check("unpacked, interleaved x", unpacked, true), plain);
    }
    if (pairs()) {
      EXPECT_EQ(check("unpacked, interleaved out", unpacked, false, true), plain);
    }
  }
  for (int tile = 0; tile < static_cast<int>(std::size(kWgmmaTiles)); ++tile) {
    if (!is_compiled(kWgmmaTiles[tile], wgmma_scales(shape)) ||
        wgmma_cycles(kWgmmaTiles[tile], shape, gpu.multiprocessors) < 0)
      continue;
    const std::string name = "expanded, tile " + std::to_string(tile);
    check(name.c_str(), [&](Cuda& device, const Linear& l) { run_expanded(device, l, tile); });
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<WeightFormat, Case>>& info) {
  const WeightFormat& format = std::get<0>(info.param);
  std::string name = format.kind == WeightKind::int8 ? "int8" : "int4";
  if (format.group != 0) name += "_group_" + std::to_string(format.group);
  return name + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(, CodesTest,
                         testing::Combine(testing::ValuesIn(formats()), testing::ValuesIn(cases())), name_of);

// ---- Codes and scales

class CodeMakingTest : public testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<DeviceUnderTest>(shared_cuda(false));
  }
  void expect_made(const Matrix& matrix, const Memory& memory, const Codes& made, Place place, int first,
                   int outputs) {
    const WeightFormat& format = matrix.format;
    const auto* bytes = memory.host<unsigned char>();
    const auto* scales = bytes + weight_bytes(format, matrix.outputs, matrix.inputs);
    const auto width = static_cast<std::size_t>(row_bytes(format, matrix.inputs));
    int failures = 0;
    for (int o = 0; o < outputs; ++o) {
      const auto row = static_cast<std::size_t>(placed_row(place, first, o));
      for (int i = 0; i < matrix.inputs; ++i) {
        const CodePlace at = code_place(format, i);
        const int bits = bytes[row * width + static_cast<std::size_t>(at.byte)] >> at.shift;
        const int code =
            format.kind == WeightKind::int4 ? ((bits & 15) ^ 8) - 8 : static_cast<std::int8_t>(bits);
        if (code != made.codes[static_cast<std::size_t>(o * matrix.inputs + i)] && ++failures <= 3)
          ADD_FAILURE() << "output " << o << ", input " << i << ": code " << code;
      }
      for (int g = 0; g < made.groups; ++g) {
        const float scale = format.group == 0
                                ? load_element(scales, DType::f32, row)
                                : load_element(scales, DType::bf16,
                                               static_cast<std::size_t>(g * padded(matrix.outputs)) + row);
        if (scale != made.scales[static_cast<std::size_t>(o * made.groups + g)] && ++failures <= 3)
          ADD_FAILURE() << "output " << o << ", group " << g << ": scale " << scale;
      }
    }
  }
  std::unique_ptr<DeviceUnderTest> device_;
};

TEST_P(CodeMakingTest, PackMakesThemFromAnyOrderAndDtype) {
  for (const int inputs : {33, 576, 1000, 1280}) {
    for (const DType dtype : all_dtypes()) {
      for (const bool transposed : {false, true}) {
        const int outputs = 77, first = 8;
        std::vector<float> numbers = random_floats(static_cast<std::size_t>(outputs * inputs), 4, 0.05f);
        for (float& v : numbers) v = rounded_to(dtype, v);
        for (int i = 0; i < inputs; ++i) numbers[static_cast<std::size_t>(3 * inputs + i)] = 0;
        numbers[0] = rounded_to(dtype, 63.5f);  // ties: 0.25 and 0.75 of a code of 0.5
        for (int i = 1; i < 20; ++i)
          numbers[static_cast<std::size_t>(i)] = rounded_to(dtype, 0.25f * static_cast<float>(i));
        std::vector<std::byte> source(numbers.size() * size_of(dtype));
        for (int o = 0; o < outputs; ++o) {
          for (int i = 0; i < inputs; ++i) {
            const int at = transposed ? i * outputs + o : o * inputs + i;
            store_element(source.data(), dtype, static_cast<std::size_t>(at),
                          numbers[static_cast<std::size_t>(o * inputs + i)]);
          }
        }
        const Memory memory(*device_, matrix_bytes(GetParam(), 96, inputs));
        const Matrix matrix{memory.as(), GetParam(), 96, inputs};
        run(*device_, Pack{.into = matrix,
                           .source = source.data(),
                           .source_dtype = dtype,
                           .transposed = transposed,
                           .first = first,
                           .outputs = outputs});
        expect_made(matrix, memory, Codes(GetParam(), outputs, inputs, numbers), Place::rows, first, outputs);
      }
    }
  }
}

// As compressed-tensors has them: each code plus 2^(bits - 1), those of 4 bits from the lower half of a byte
// on.
TEST_P(CodeMakingTest, StoredCodesAreTakenAsTheyAre) {
  const int outputs = 77, bits = GetParam().bits(), most = bits == 4 ? 7 : 127;
  for (const int inputs : {33, 576, 1000}) {
    for (const Place place : {Place::rows, Place::gate, Place::up}) {
      const std::vector<float> numbers = random_floats(static_cast<std::size_t>(outputs * inputs), 4, 0.05f);
      Codes made(GetParam(), outputs, inputs, numbers);
      made.codes[5] = -most - 1;  // no quantisation of ours makes it, but files have it
      for (float& scale : made.scales)
        scale += std::ldexp(1.0f, std::ilogb(scale) - 7);  // all of a bf16's bits
      const int gap = 24, stride = (inputs + 7) / 8 * 8 + gap, scale_stride = made.groups + 3;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(outputs * stride * bits / 8), 0xa5);
      std::vector<float> scales(static_cast<std::size_t>(outputs * scale_stride), 9);
      for (int o = 0; o < outputs; ++o) {
        for (int i = 0; i < inputs; ++i) {
          const int stored = made.codes[static_cast<std::size_t>(o * inputs + i)] + most + 1,
                    at = o * stride + i;
          auto& byte = codes[static_cast<std::size_t>(at * bits / 8)];
          const int shift = bits == 4 ? i % 2 * 4 : 0;
          byte = static_cast<std::uint8_t>((byte & ~(((1 << bits) - 1) << shift)) | stored << shift);
        }
        for (int g = 0; g < made.groups; ++g)
          scales[static_cast<std::size_t>(o * scale_stride + g)] =
              made.scales[static_cast<std::size_t>(o * made.groups + g)];
      }
      const MemoryBytes code_file(codes.data()), scale_file(scales.data());
      const int first = place == Place::rows ? 8 : 0,
                all = place == Place::rows ? 96 : gate_up_outputs(outputs);
      const Memory memory(*device_, matrix_bytes(GetParam(), all, inputs));
      const Matrix matrix{memory.as(), GetParam(), all, inputs};
      run(*device_, Pack{.into = matrix,
                         .file = &code_file,
                         .source_stride = stride,
                         .place = place,
                         .first = first,
                         .outputs = outputs,
                         .scales = {.file = &scale_file, .dtype = DType::f32, .stride = scale_stride}});
      expect_made(matrix, memory, made, place, first, outputs);
    }
  }
}

TEST_P(CodeMakingTest, DummiesAreTheSameDrawsQuantised) {
  const int outputs = 300, inputs = 1024;
  const std::vector<float> numbers = drawn_numbers(*device_, outputs, inputs, 17);
  const Memory memory(*device_, matrix_bytes(GetParam(), gate_up_outputs(outputs), inputs));
  const Matrix matrix{memory.as(), GetParam(), gate_up_outputs(outputs), inputs};
  run(*device_, FillRandom{.into = matrix, .place = Place::up, .outputs = outputs, .seed = 17});
  expect_made(matrix, memory, Codes(GetParam(), outputs, inputs, numbers), Place::up, 0, outputs);
}

TEST_P(CodeMakingTest, NumbersThatAreNotFiniteMakeTheirScaleANan) {
  const int outputs = 40, inputs = 256;
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> numbers = random_floats(static_cast<std::size_t>(outputs * inputs), 4);
    numbers[static_cast<std::size_t>(7 * inputs + 200)] = bad;
    const Memory memory(*device_, matrix_bytes(GetParam(), outputs, inputs));
    const Matrix matrix{memory.as(), GetParam(), outputs, inputs};
    run(*device_,
        Pack{.into = matrix, .source = numbers.data(), .source_dtype = DType::f32, .outputs = outputs});
    const auto* scales = memory.host() + weight_bytes(GetParam(), outputs, inputs);
    const int group = GetParam().group;
    for (int o = 0; o < outputs; ++o) {
      const float scale = group == 0
                              ? load_element(scales, DType::f32, static_cast<std::size_t>(o))
                              : load_element(scales, DType::bf16,
                                             static_cast<std::size_t>(200 / group * padded(outputs) + o));
      EXPECT_EQ(std::isnan(scale), o == 7) << "output " << o;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CodeMakingTest, testing::ValuesIn(formats()), [](const auto& info) {
  return std::string(info.param.kind == WeightKind::int8 ? "int8" : "int4") +
         (info.param.group == 0 ? std::string() : "_group_" + std::to_string(info.param.group));
});

}  // namespace
}  // namespace troupe::kernels::cuda
