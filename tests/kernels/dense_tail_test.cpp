// A dense layer's way from attention to attention, in one op: what its three ops make one after the other.
#include "kernels/dense_tail.h"

#include "kernels/device_under_test.h"
#include "kernels/tail_parts.h"

namespace troupe::kernels {
namespace {

struct TailShape {
  int hidden, heads, kv_heads, head_dim, intermediate;
};

constexpr int kTailLayers = 2, kTailBlocks = 2;

/// One layer's weights and the memory of a step.
class TailLayer {
 public:
  TailLayer(DeviceUnderTest& device, const WeightFormat& format, const TailShape& s)
      : device_(device),
        format_(format),
        dtype_(format.activations),
        shape_(s),
        q_width_(s.heads * s.head_dim),
        out_(weight(s.hidden, q_width_)),
        gate_up_(weight(gate_up_outputs(s.intermediate), s.hidden)),
        down_(weight(s.hidden, s.intermediate)),
        qkv_(weight((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden)),
        norms_{norm_weight(), norm_weight()} {}

  struct Made {
    std::vector<float> residual, q, kv;
  };
  /// Of so many rows, the last of them padding on the GPU where there are several.
  Made run_it(int rows, bool with_next, bool in_one, std::uint32_t seed, KvFormat format = KvFormat::plain) {
    const auto n = std::size_t(rows);
    Rows residual(device_, DType::f32, rows, shape_.hidden,
                  random_floats(n * std::size_t(shape_.hidden), seed)),
        x(device_, dtype_, rows, shape_.hidden), activation(device_, dtype_, rows, shape_.intermediate),
        attended(device_, dtype_, rows, q_width_, random_floats(n * std::size_t(q_width_), seed + 1)),
        q(device_, dtype_, rows, q_width_);
    KvCache kv{.dtype = dtype_,
               .layers = kTailLayers,
               .kv_heads = shape_.kv_heads,
               .head_dim = shape_.head_dim,
               .format = format};
    const Memory unquantised(device_, kv.unquantised_bytes(rows) + 64);
    const Memory memory(device_, std::size_t{kTailBlocks} * kv.block_bytes());
    kv.data = memory.as();
    std::vector<KvSlot> slots;
    for (int r = 0; r < rows; ++r) slots.push_back({r % kTailBlocks, 7 * r % kBlockTokens});
    if (device_.is_cuda() && rows > 1) slots.back().block = kPaddingBlock;
    const auto norm = [&](int which) {
      return AddRmsNorm{.out = x.data(),
                        .residual = residual.floats(),
                        .weight = norms_[which],
                        .dtype = dtype_,
                        .rows = rows,
                        .cols = shape_.hidden,
                        .eps = 1e-5f};
    };
    DenseTail op{.attention_out = {.residual = residual.floats(),
                                   .x = attended.data(),
                                   .weight = out_->matrix,
                                   .rows = rows},
                 .mlp = {.residual = residual.floats(),
                         .x = x.data(),
                         .activation = activation.data(),
                         .gate_up = gate_up_->matrix,
                         .down = down_->matrix,
                         .rows = rows,
                         .norm = norm(0)}};
    const QkvRopeKvWrite next{
        .q = q.data(),
        .x = x.data(),
        .weight = qkv_->matrix,
        .rope = device_.put(random_floats(n * std::size_t(shape_.head_dim), seed + 2)),
        .kv = kv,
        .layer = 1,
        .heads = shape_.heads,
        .batch = {.slots = device_.put(slots.data(), slots.size()), .count = rows, .rows = rows},
        .norm = norm(1),
        .unquantised = unquantised.as()};
    if (with_next) op.next = next;
    if (in_one) {
      run(device_, op);
    } else {
      run(device_, op.attention_out);
      run(device_, norm(0));
      op.mlp.norm = {};
      run(device_, op.mlp);
      if (with_next) run(device_, norm(1));
      op.next.norm = {};
      if (with_next) run(device_, op.next);
    }
    Made made;
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < shape_.hidden; ++i) made.residual.push_back(residual.at(r, i));
      for (int i = 0; i < q_width_; ++i) made.q.push_back(q.at(r, i));
    }
    if (format == KvFormat::int8) {  // on the GPU: rows of head_dim codes, then the rows' scales
      const std::byte* host = memory.host();
      for (std::size_t piece = 0; piece < memory.bytes(); piece += kv.piece_bytes()) {
        const auto* scales = reinterpret_cast<const float*>(host + piece + kv.code_bytes());
        for (int i = 0; i < kBlockTokens * shape_.head_dim; ++i)
          made.kv.push_back(float(std::int8_t(host[piece + std::size_t(i)])) * scales[i / shape_.head_dim]);
      }
      return made;
    }
    for (std::size_t i = 0; i < memory.bytes() / size_of(dtype_); ++i)
      made.kv.push_back(load_element(memory.host(), dtype_, i));
    return made;
  }

 private:
  std::unique_ptr<Weight> weight(int outputs, int inputs) {
    return std::make_unique<Weight>(
        device_, format_, outputs, inputs,
        random_floats(std::size_t(outputs) * std::size_t(inputs), ++seed_, 1 / std::sqrt(float(inputs))));
  }
  const float* norm_weight() { return random_norm_weight(device_, dtype_, shape_.hidden, ++seed_); }

  DeviceUnderTest& device_;
  WeightFormat format_;
  DType dtype_;
  TailShape shape_;
  int q_width_;
  std::uint32_t seed_ = 100;
  std::unique_ptr<Weight> out_, gate_up_, down_, qkv_;
  const float* norms_[2];
};

class DenseTails : public OpTest {
 protected:
  void expect_three_ops(const WeightFormat& format, const std::vector<TailShape>& shapes);
};
TROUPE_ALL_DEVICES(DenseTails);

void DenseTails::expect_three_ops(const WeightFormat& format, const std::vector<TailShape>& shapes) {
  for (const TailShape& shape : shapes) {
    TailLayer layer(device(), format, shape);
    std::vector<int> batches{1, 8, 2, 5, 1, 4, 9, 3, 7};
    if (where().cuda) batches.insert(batches.end(), {16, 17, 25, 40, 33, 48, 64, 9});
    for (const int rows : batches) {
      for (const bool with_next : {true, false}) {
        const auto seed = std::uint32_t(1000 + rows);
        const KvFormat format = where().cuda && rows % 2 == 0 ? KvFormat::int8 : KvFormat::plain;
        const auto one = layer.run_it(rows, with_next, true, seed, format),
                   three = layer.run_it(rows, with_next, false, seed, format);
        const std::string of = std::string(", ") + to_string(format) + ", " + std::to_string(rows) +
                               " rows, hidden " + std::to_string(shape.hidden) +
                               (with_next ? "" : ", the last");
        expect_near(one.residual, three.residual, dtype(), "residual" + of);
        expect_near(one.q, three.q, dtype(), "q" + of);
        expect_near(one.kv, three.kv, dtype(), "kv" + of);
      }
    }
  }
}

TEST_P(DenseTails, IsItsThreeOps) {
  std::vector<TailShape> shapes{{576, 9, 3, 64, 1536}, {40, 3, 1, 16, 72}};
  if (where().cuda) {
    shapes.push_back({1024, 16, 2, 128, 3072});
    shapes.push_back({1000, 10, 5, 128, 2500});
    shapes.push_back({1056, 8, 2, 64, 800});  // not for strips
  }
  expect_three_ops(dtype(), shapes);
}

TEST_P(DenseTails, OfQuantisedWeightsIsItsThreeOps) {
  if (!where().cuda) GTEST_SKIP() << "the CPU runs the three ops themselves";
  if (dtype() == DType::f32) GTEST_SKIP() << "codes meet 16-bit activations";
  const std::vector<TailShape> shapes{
      {1024, 16, 2, 128, 3072}, {2560, 20, 4, 128, 1536}, {576, 9, 3, 64, 1536}};
  for (const WeightFormat& format :
       {WeightFormat(WeightKind::int8, dtype()), WeightFormat(WeightKind::int4, dtype()),
        WeightFormat(WeightKind::int4, dtype(), 64), WeightFormat(WeightKind::int4, dtype(), 128)}) {
    expect_three_ops(format, shapes);
  }
}

}  // namespace
}  // namespace troupe::kernels
