// Products of fp8 codes on the GPU, every way of them, beside sums in double precision over these codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/fp8_numbers.h"
#include "kernels/pack.h"

namespace troupe::kernels::cuda {
namespace {

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
    if (!is_compiled(kWgmmaTiles[tile], wgmma_scales(shape)) ||
        wgmma_cycles(kWgmmaTiles[tile], shape, gpu.multiprocessors) < 0)
      continue;
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

TEST(Fp8Rows, ARowWithANumberThatIsNotFiniteIsNanAndNoOtherIs) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  DeviceUnderTest device(shared_cuda(false));
  const int rows = 5, outputs = 96, inputs = 300;
  const std::vector<float> numbers = random_floats(std::size_t(outputs * inputs), 6, 0.05f);
  const Weight weight(device, kFp8, outputs, inputs, numbers);
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    Rows x(device, DType::bf16, rows, inputs, random_floats(std::size_t(rows * inputs), 7));
    x.set(3, 299, bad);
    Rows out(device, DType::f32, rows, outputs);
    device.call([&] {
      run(device.cuda(), Linear{.weight = weight.matrix,
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
