// Products of many rows, by wgmma, by the tiles for GPUs without it, and with codes that are unpacked in
// registers, compared with sums in double precision, for each ending. Large results are checked at all edges
// and at random places. Nothing outside the rows may be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "gpu/cuda.h"
#include "gpu/dtype.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kGuardRows = 3;  // after the last row of an output; must not be written

struct WgmmaCase {
  const char* name;
  Ending ending;
  std::vector<int> group_rows;  // rows of each group; a dense product has one group
  int outputs;                  // qkv: (heads + 2 kv_heads) head_dim
  int inputs;
  bool gathered = false;
  DType dtype = DType::bf16;
  int heads = 0, kv_heads = 0, head_dim = 0;
};

void PrintTo(const WgmmaCase& c, std::ostream* out) { *out << c.name; }

template <class T>
class Array {
 public:
  Array(Cuda& device, const std::vector<T>& values) : device_(device), count_(values.size()) {
    data_ = static_cast<T*>(device.alloc(count_ * sizeof(T)));
    if (data_ == nullptr) throw std::runtime_error("no memory for a test");
    device.upload(data_, values.data(), count_ * sizeof(T));
    device.sync();
  }
  ~Array() { device_.free(data_); }
  Array(const Array&) = delete;
  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    device_.download(values.data(), data_, count_ * sizeof(T));
    device_.sync();
    return values;
  }

 private:
  Cuda& device_;
  std::size_t count_;
  T* data_ = nullptr;
};

std::uint16_t bits_of(DType dtype, float v) {
  return dtype == DType::bf16 ? float_to_bf16(v) : float_to_f16(v);
}
float value_of(DType dtype, std::uint16_t bits) {
  return dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// rows × padded(cols) normal numbers, zeros in the padding.
std::vector<std::uint16_t> normal_rows(DType dtype, int rows, int cols, float deviation, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> pool(1 << 16);
  std::normal_distribution<float> normal(0, deviation);
  for (float& v : pool) v = normal(random);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(padded(cols)));
  for (int r = 0; r < rows; ++r) {
    std::uint32_t at = random();
    const std::uint32_t step = random() | 1;
    for (int c = 0; c < cols; ++c, at += step) {
      values[static_cast<std::size_t>(r) * static_cast<std::size_t>(padded(cols)) +
             static_cast<std::size_t>(c)] = bits_of(dtype, pool[at % pool.size()]);
    }
  }
  return values;
}

class LinearWgmmaTestBase : public testing::TestWithParam<WgmmaCase> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<Cuda>();
    make(GetParam());
  }

  /// By wgmma, by tiles whose blocks may have so much shared memory, or unpacked.
  void multiply(const Linear& l) {
    GpuTraits gpu = traits_of(*device_);
    if (!codes_.empty()) return run_unpacked(*device_, l);
    if (tiles_shared_bytes_ == 0) return run_wgmma(*device_, l, wgmma_plan(shape_of(l), gpu));
    gpu.block_shared_bytes = tiles_shared_bytes_;
    run_stream(*device_, l, streaming::many_rows_plan(shape_of(l), gpu));
  }

  void make(const WgmmaCase& c) {
    const int k = padded(c.inputs), groups = static_cast<int>(c.group_rows.size());
    offsets_ = {0};
    for (const int rows : c.group_rows) offsets_.push_back(offsets_.back() + rows);
    rows_ = offsets_.back();
    source_rows_ = c.gathered ? std::max(rows_ / 3, 1) : rows_;
    std::mt19937 random(7);
    gather_.resize(static_cast<std::size_t>(rows_));
    for (auto& g : gather_) g = static_cast<int>(random() % static_cast<unsigned>(source_rows_));
    x_ = normal_rows(c.dtype, source_rows_, c.inputs, 1, 11);
    weights_ = normal_rows(c.dtype, groups * padded(c.outputs), c.inputs, 0.05f, 12);
    for (int g = 0; g < groups; ++g) {  // padding rows of a weight are zero
      const auto at = [&](int row) { return weights_.begin() + static_cast<std::ptrdiff_t>(row) * k; };
      std::fill(at(g * padded(c.outputs) + c.outputs), at((g + 1) * padded(c.outputs)), std::uint16_t{0});
    }
    scale_.resize(static_cast<std::size_t>(rows_));
    for (float& s : scale_) s = std::uniform_real_distribution<float>(0.1f, 1)(random);
    width_ = c.ending == Ending::swiglu ? c.outputs / 2
             : c.ending == Ending::qkv  ? c.heads * c.head_dim
                                        : c.outputs;
    const auto size = static_cast<std::size_t>(rows_ + kGuardRows) * static_cast<std::size_t>(padded(width_));
    old_f32_.resize(size);
    for (float& v : old_f32_) v = std::normal_distribution<float>(0, 1)(random);
    old_bits_.assign(size, 0x4242);
  }

  /// The products that follow have random codes as weights, which bf16 holds exactly, scaled. A scale that
  /// belongs to no input is NaN.
  void take_codes(const WeightFormat& format) {
    const WgmmaCase& c = GetParam();
    format_ = format;
    const std::size_t stride = matrix_bytes(format, c.outputs, c.inputs);
    const int k = padded(c.inputs), outputs = padded(c.outputs), most = format.bits() == 4 ? 7 : 127;
    const auto row = static_cast<std::size_t>(row_bytes(format, c.inputs));
    codes_.assign(stride * c.group_rows.size(), 0);
    std::mt19937 random(23);
    for (std::size_t g = 0; g < c.group_rows.size(); ++g) {
      std::uint8_t* const codes = codes_.data() + g * stride;
      std::uint8_t* const scales = codes + weight_bytes(format, c.outputs, c.inputs);
      const auto put = [&](auto number, std::size_t i) {
        std::memcpy(scales + i * sizeof number, &number, sizeof number);
      };
      const int groups = format.group == 0 ? 1 : padded_inputs(format, c.inputs) / format.group;
      std::vector<float> scale(static_cast<std::size_t>(groups * outputs));
      for (std::size_t i = 0; i < scale.size(); ++i) {
        scale[i] = format.bits() == 8 ? std::ldexp(1.0f, -11 - static_cast<int>(random() % 3))
                                      : std::ldexp(static_cast<float>(16 + random() % 16), -12);
        const bool used = format.group == 0 || static_cast<int>(i) / outputs * format.group < c.inputs;
        if (format.group == 0) {
          put(scale[i], i);
        } else {
          put(used ? float_to_bf16(scale[i]) : std::uint16_t{0x7fc0}, i);
        }
      }
      for (int o = 0; o < c.outputs; ++o) {
        for (int i = 0; i < c.inputs; ++i) {
          const int code = static_cast<int>(random() % static_cast<unsigned>(2 * most + 1)) - most;
          const CodePlace place = code_place(format, i);
          codes[static_cast<std::size_t>(o) * row + static_cast<std::size_t>(place.byte)] |=
              static_cast<std::uint8_t>((code & (format.bits() == 4 ? 15 : 255)) << place.shift);
          const int group = format.group == 0 ? 0 : i / format.group;
          weights_[(g * static_cast<std::size_t>(outputs) + static_cast<std::size_t>(o)) *
                       static_cast<std::size_t>(k) +
                   static_cast<std::size_t>(i)] =
              float_to_bf16(static_cast<float>(code) * scale[static_cast<std::size_t>(group * outputs + o)]);
        }
      }
    }
  }

  /// y[p][o] in double precision.
  double product(int p, int o) const {
    const WgmmaCase& c = GetParam();
    const int k = padded(c.inputs);
    const auto group = std::upper_bound(offsets_.begin(), offsets_.end(), p) - offsets_.begin() - 1;
    const int row = c.gathered ? gather_[static_cast<std::size_t>(p)] : p;
    const std::uint16_t* x = x_.data() + static_cast<std::ptrdiff_t>(row) * k;
    const std::uint16_t* w = weights_.data() + (group * padded(c.outputs) + o) * k;
    double sum = 0;
    for (int i = 0; i < c.inputs; ++i) {
      sum += static_cast<double>(value_of(c.dtype, x[i])) * static_cast<double>(value_of(c.dtype, w[i]));
    }
    return sum;
  }

  /// Places to check: corners and edges of rows, groups and tiles, and random ones.
  std::vector<std::pair<int, int>> places(int columns) const {
    std::vector<int> rows, cols;
    for (const int offset : offsets_) {
      for (const int around : {-1, 0, 1, 63, 64, 127, 128}) rows.push_back(offset + around);
    }
    if (rows.size() > 60) rows.resize(60);
    for (const int around : {0, 7, 8, 31, 32, 63, 64, 127, 128, 255, 256}) {
      cols.push_back(around);
      cols.push_back(columns - 1 - around);
    }
    std::vector<std::pair<int, int>> all;
    for (const int r : rows) {
      for (const int c : cols) all.emplace_back(r, c);
    }
    std::mt19937 random(5);
    for (int i = 0; i < 4000; ++i) {
      all.emplace_back(static_cast<int>(random() % static_cast<unsigned>(std::max(rows_, 1))),
                       static_cast<int>(random() % static_cast<unsigned>(columns)));
    }
    std::erase_if(all, [&](auto place) {
      return place.first < 0 || place.first >= rows_ || place.second < 0 || place.second >= columns;
    });
    return all;
  }

  void expect_near(double got, double want, double unit, int p, int o) {
    const double allowed = unit * std::abs(want) + 2e-4;
    if (!(std::abs(got - want) <= allowed) && ++failures_ <= 5) {
      ADD_FAILURE() << "row " << p << " column " << o << ": " << got << " instead of " << want;
    }
  }

  Linear linear(Cuda& device) {
    const WgmmaCase& c = GetParam();
    x_device_ = std::make_unique<Array<std::uint16_t>>(device, x_);
    weights_device_ = std::make_unique<Array<std::uint16_t>>(device, weights_);
    offsets_device_ = std::make_unique<Array<std::int32_t>>(device, offsets_);
    gather_device_ = std::make_unique<Array<std::int32_t>>(device, gather_);
    scale_device_ = std::make_unique<Array<float>>(device, scale_);
    Linear l{.weight = {weights_device_->data(), c.dtype, c.outputs, c.inputs},
             .x = x_device_->data(),
             .rows = rows_ + (c.gathered ? kGuardRows : 0),  // an upper bound: the offsets give the rows
             .x_rows = source_rows_,
             .ending = c.ending,
             .scale = scale_device_->data()};
    if (c.group_rows.size() > 1) {
      l.groups = {.offsets = offsets_device_->data(),
                  .gather = c.gathered ? gather_device_->data() : nullptr,
                  .count = static_cast<int>(c.group_rows.size()),
                  .weight_stride = matrix_bytes(c.dtype, c.outputs, c.inputs)};
    }
    if (!codes_.empty()) {
      codes_device_ = std::make_unique<Array<std::uint8_t>>(device, codes_);
      l.weight.data = codes_device_->data();
      l.weight.format = format_;
      l.groups.weight_stride = matrix_bytes(format_, c.outputs, c.inputs);
    }
    return l;
  }

  std::size_t at(int p, int o) const {
    return static_cast<std::size_t>(p) * static_cast<std::size_t>(padded(width_)) +
           static_cast<std::size_t>(o);
  }

  std::unique_ptr<Cuda> device_;
  int tiles_shared_bytes_ = 0;
  WeightFormat format_{};
  std::vector<std::uint8_t> codes_;  // empty: weights are bf16
  std::unique_ptr<Array<std::uint8_t>> codes_device_;
  int rows_ = 0, source_rows_ = 0, width_ = 0, failures_ = 0;
  std::vector<std::int32_t> offsets_, gather_;
  std::vector<std::uint16_t> x_, weights_, old_bits_;
  std::vector<float> scale_, old_f32_;
  std::unique_ptr<Array<std::uint16_t>> x_device_, weights_device_;
  std::unique_ptr<Array<std::int32_t>> offsets_device_, gather_device_;
  std::unique_ptr<Array<float>> scale_device_;
};

class LinearWgmmaTest : public LinearWgmmaTestBase {
 protected:
  void expect_sums();
};

void LinearWgmmaTest::expect_sums() {
  const WgmmaCase& c = GetParam();
  Linear l = linear(*device_);
  const double unit = c.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  if (c.ending == Ending::store_f32 || c.ending == Ending::add) {
    Array<float> out(*device_, old_f32_), again(*device_, old_f32_);
    l.out = out.data();
    multiply(l);
    l.out = again.data();
    multiply(l);
    const auto got = out.read();
    EXPECT_EQ(std::memcmp(got.data(), again.read().data(), got.size() * sizeof(float)), 0)
        << "not the same bits";
    for (const auto& [p, o] : places(c.outputs)) {
      const double before = c.ending == Ending::add ? static_cast<double>(old_f32_[at(p, o)]) : 0.0;
      expect_near(static_cast<double>(got[at(p, o)]), before + product(p, o), 1e-6, p, o);
    }
    for (std::size_t i = at(rows_, 0); i < got.size(); ++i) ASSERT_EQ(got[i], old_f32_[i]) << "past the rows";
    if (c.ending == Ending::store_f32 && rows_ > 0) {
      for (int o = c.outputs; o < padded(width_); ++o) ASSERT_EQ(got[at(rows_ - 1, o)], 0.0f);
    }
    return;
  }
  Array<std::uint16_t> out(*device_, old_bits_), again(*device_, old_bits_);
  l.out = out.data();
  multiply(l);
  l.out = again.data();
  multiply(l);
  const auto got = out.read();
  EXPECT_EQ(std::memcmp(got.data(), again.read().data(), got.size() * 2), 0) << "not the same bits";
  for (const auto& [p, o] : places(width_)) {
    double want = 0;
    if (c.ending == Ending::swiglu) {
      const double gate = product(p, gate_row(o));
      want = gate / (1 + std::exp(-gate)) * product(p, up_row(o));
    } else {
      want = product(p, o) * static_cast<double>(scale_[static_cast<std::size_t>(p)]);
    }
    expect_near(static_cast<double>(value_of(c.dtype, got[at(p, o)])), want, unit, p, o);
  }
  for (std::size_t i = at(rows_, 0); i < got.size(); ++i) ASSERT_EQ(got[i], old_bits_[i]) << "past the rows";
  if (rows_ > 0) {
    for (int o = width_; o < padded(width_); ++o) ASSERT_EQ(got[at(rows_ - 1, o)], 0);
  }
}

TEST_P(LinearWgmmaTest, EqualsSumsInDoublePrecision) {
  if (!device_->features().wgmma) GTEST_SKIP() << "wgmma needs a GPU of compute capability 9.0";
  ASSERT_TRUE(wgmma_takes(shape_of(linear(*device_)), traits_of(*device_)));
  expect_sums();
}

TEST_P(LinearWgmmaTest, UnpackedCodesEqualSumsInDoublePrecision) {
  if (!device_->features().wgmma) GTEST_SKIP() << "wgmma needs a GPU of compute capability 9.0";
  if (GetParam().dtype != DType::bf16) GTEST_SKIP() << "codes become bfloat16";
  if (GetParam().group_rows.size() < 2) GTEST_SKIP() << "of experts";
  for (const WeightFormat& format :
       {WeightFormat(WeightKind::int8, DType::bf16), WeightFormat(WeightKind::int4, DType::bf16),
        WeightFormat(WeightKind::int4, DType::bf16, 32), WeightFormat(WeightKind::int4, DType::bf16, 128)}) {
    SCOPED_TRACE(to_string(format));
    take_codes(format);
    ASSERT_TRUE(unpacked_takes(shape_of(linear(*device_)), traits_of(*device_)));
    expect_sums();
  }
}

TEST_P(LinearWgmmaTest, TilesEqualSumsInDoublePrecision) {
  for (const int kib : {99, 163}) {  // three stages and two
    tiles_shared_bytes_ = kib << 10;
    expect_sums();
  }
}

class QkvWgmmaTest : public LinearWgmmaTestBase {
 protected:
  void expect_slots();
};

TEST_P(QkvWgmmaTest, WritesKeysAndValuesToTheirSlots) {
  if (!device_->features().wgmma) GTEST_SKIP() << "wgmma needs a GPU of compute capability 9.0";
  expect_slots();
}

TEST_P(QkvWgmmaTest, TilesWriteKeysAndValuesToTheirSlots) {
  tiles_shared_bytes_ = 163 << 10;
  expect_slots();
}

void QkvWgmmaTest::expect_slots() {
  const WgmmaCase& c = GetParam();
  const int hd = c.head_dim, blocks = rows_ / kBlockTokens + 2, layers = 2, layer = 1;
  std::vector<float> rope(static_cast<std::size_t>(rows_ * hd));
  std::vector<KvSlot> slots(static_cast<std::size_t>(rows_));
  for (int r = 0; r < rows_; ++r) {
    for (int i = 0; i < hd / 2; ++i) {
      const double angle = r * std::pow(500000.0, -2.0 * i / hd);
      rope[static_cast<std::size_t>(r * hd + 2 * i)] = static_cast<float>(std::cos(angle));
      rope[static_cast<std::size_t>(r * hd + 2 * i + 1)] = static_cast<float>(std::sin(angle));
    }
    slots[static_cast<std::size_t>(r)] = {blocks - 1 - r / kBlockTokens, r % kBlockTokens};
    if (r % 10 == 9) slots[static_cast<std::size_t>(r)].block = kPaddingBlock;
  }
  KvCache kv{nullptr, c.dtype, layers, c.kv_heads, hd};
  const std::vector<std::uint16_t> old_kv(kv.block_bytes() / 2 * static_cast<std::size_t>(blocks), 0x4242);
  Array<std::uint16_t> memory(*device_, old_kv), q(*device_, old_bits_);
  Array<float> rope_device(*device_, rope);
  Array<KvSlot> slots_device(*device_, slots);
  kv.data = memory.data();
  Linear l = linear(*device_);
  l.q = q.data();
  l.rope = rope_device.data();
  l.kv = kv;
  l.layer = layer;
  l.heads = c.heads;
  l.slots = slots_device.data();
  multiply(l);
  const auto got_q = q.read(), got_kv = memory.read();
  const double unit = c.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  const int keys_at = c.heads * hd, values_at = keys_at + c.kv_heads * hd;
  const auto kv_at = [&](int p, int o) {
    const KvSlot slot = slots[static_cast<std::size_t>(p)];
    const std::size_t piece = o < values_at ? kv.key_offset(slot.block, layer, (o - keys_at) / hd)
                                            : kv.value_offset(slot.block, layer, (o - values_at) / hd);
    return piece / 2 + static_cast<std::size_t>(kv_index(true, hd, slot.offset, o % hd));
  };
  for (const auto& [p, o] : places(c.outputs)) {
    double want = product(p, o);
    if (o < values_at) {
      const std::size_t pair = static_cast<std::size_t>(p * hd + o % hd / 2 * 2);
      const double cosine = static_cast<double>(rope[pair]), sine = static_cast<double>(rope[pair + 1]);
      want = o % 2 == 0 ? want * cosine - product(p, o + 1) * sine : want * cosine + product(p, o - 1) * sine;
    }
    if (o < keys_at) {
      expect_near(static_cast<double>(value_of(c.dtype, got_q[at(p, o)])), want, unit, p, o);
    } else if (slots[static_cast<std::size_t>(p)].block != kPaddingBlock) {
      expect_near(static_cast<double>(value_of(c.dtype, got_kv[kv_at(p, o)])), want, unit, p, o);
    }
  }
  for (std::size_t i = at(rows_, 0); i < got_q.size(); ++i)
    ASSERT_EQ(got_q[i], old_bits_[i]) << "past the rows";
  // Exactly the slots of this layer have changed.
  std::vector<bool> mine(got_kv.size());
  for (int p = 0; p < rows_; ++p) {
    if (slots[static_cast<std::size_t>(p)].block == kPaddingBlock) continue;
    for (int o = keys_at; o < c.outputs; ++o) mine[kv_at(p, o)] = true;
  }
  std::size_t strays = 0;
  for (std::size_t i = 0; i < got_kv.size(); ++i) strays += !mine[i] && got_kv[i] != 0x4242;
  EXPECT_EQ(strays, 0u);
}

std::vector<int> uneven(int groups, int rows) {
  std::mt19937 random(3);
  std::vector<int> sizes;
  for (int g = 0; g < groups; ++g)
    sizes.push_back(g % 7 == 3    ? 0
                    : g % 11 == 5 ? 1
                                  : static_cast<int>(random() % static_cast<unsigned>(rows)));
  return sizes;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearWgmmaTest,
    testing::Values(WgmmaCase{"one_row", Ending::store_f32, {1}, 32, 32},
                    WgmmaCase{"logits_ragged", Ending::store_f32, {77}, 1000, 576},
                    WgmmaCase{"logits_many", Ending::store_f32, {256}, 20000, 1024},
                    WgmmaCase{"add_ragged", Ending::add, {321}, 1000, 1056},
                    WgmmaCase{"add_many", Ending::add, {2048}, 2560, 2560},
                    WgmmaCase{"add_f16", Ending::add, {500}, 576, 1536, false, DType::f16},
                    WgmmaCase{"swiglu_ragged", Ending::swiglu, {200}, 2 * 96, 160},
                    WgmmaCase{"swiglu_many", Ending::swiglu, {1500}, 2 * 3072, 1024},
                    WgmmaCase{"swiglu_f16", Ending::swiglu, {130}, 2 * 576, 192, false, DType::f16},
                    WgmmaCase{"scaled_dense", Ending::store_scaled, {300}, 520, 288},
                    WgmmaCase{"experts_gate_up", Ending::swiglu, uneven(20, 300), 2 * 512, 1024, true},
                    WgmmaCase{"experts_gate_up_few_rows", Ending::swiglu, uneven(64, 20), 2 * 256, 512, true},
                    WgmmaCase{"experts_gate_up_odd_k", Ending::swiglu, uneven(9, 200), 2 * 96, 352, true},
                    WgmmaCase{"experts_gate_up_f16", Ending::swiglu, uneven(9, 200), 2 * 96, 352, true,
                              DType::f16},
                    WgmmaCase{"experts_down", Ending::store_scaled, uneven(20, 300), 2560, 512},
                    WgmmaCase{"experts_down_few_rows", Ending::store_scaled, uneven(64, 20), 1000, 256},
                    WgmmaCase{"no_rows", Ending::store_scaled, {0, 0, 0}, 64, 64, true}),
    kName);

INSTANTIATE_TEST_SUITE_P(
    Shapes, QkvWgmmaTest,
    testing::Values(
        WgmmaCase{"qkv_small", Ending::qkv, {70}, (9 + 6) * 64, 576, false, DType::bf16, 9, 3, 64},
        WgmmaCase{"qkv_f16", Ending::qkv, {190}, (9 + 6) * 64, 576, false, DType::f16, 9, 3, 64},
        WgmmaCase{"qkv_many", Ending::qkv, {1111}, (20 + 8) * 128, 2560, false, DType::bf16, 20, 4, 128}),
    kName);

}  // namespace
}  // namespace troupe::kernels::cuda
