// The way of a layer with experts from attention to attention, in one op: what its ops make one after the
// other.
#include "kernels/moe_tail.h"

#include "kernels/fill_random.h"
#include "kernels/moe_layer.h"
#include "kernels/tail_parts.h"

namespace troupe::kernels {
namespace {

struct MoeTailShape {
  int hidden, heads, kv_heads, head_dim, intermediate, experts, shared, top_k;
  int first = 0, held = 0;  ///< as in Moe
  int groups() const { return (held > 0 ? held : experts) + shared; }
};

struct MoeTailStep {
  int rows = 0;
  bool padding = false;  ///< the last row is, on the GPU
  bool with_next = true;
  KvFormat kv = KvFormat::plain;
  std::uint32_t seed = 0;
};

constexpr int kMoeTailLayers = 2, kMoeTailBlocks = 2;

/// MoeLayer::Choice::gap of a row whose experts do not depend on how its norm is rounded.
constexpr double kClearGap = 0.006;

/// One layer's weights and the memory of a step.
class MoeTailLayer {
 public:
  MoeTailLayer(DeviceUnderTest& device, const WeightFormat& attention, const WeightFormat& experts,
               const MoeTailShape& s)
      : device_(device),
        dtype_(attention.activations),
        shape_(s),
        q_width_(s.heads * s.head_dim),
        out_(weight(attention, s.hidden, q_width_)),
        qkv_(weight(attention, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden)),
        router_(device, dtype_, {s.hidden, 1, s.experts, 0, s.top_k, 0, 1.5f}, ++seed_),
        gate_up_{{nullptr, experts, gate_up_outputs(s.intermediate), s.hidden}, s.groups()},
        down_{{nullptr, experts, s.hidden, s.intermediate}, s.groups()},
        gate_up_memory_(device, std::size_t(gate_up_.count) * gate_up_.stride()),
        down_memory_(device, std::size_t(down_.count) * down_.stride()),
        norms_{norm_weight(), norm_weight()} {
    gate_up_.first.data = gate_up_memory_.as();
    down_.first.data = down_memory_.as();
    const auto fill = [&](const Matrix& into, Place place, int outputs, float deviation) {
      run(device, FillRandom{.into = into,
                             .place = place,
                             .outputs = outputs,
                             .seed = ++seed_,
                             .deviation = deviation / std::sqrt(float(into.inputs))});
    };
    for (int g = 0; g < gate_up_.count; ++g) {
      fill(gate_up_.at(g), Place::gate, s.intermediate, 1);
      fill(gate_up_.at(g), Place::up, s.intermediate, 1);
      fill(down_.at(g), Place::rows, s.hidden, 2);
    }
  }

  struct Made {
    std::vector<float> residual, q, kv;
    std::vector<std::int32_t> chosen;
    double gap = 1;  ///< the smallest of all rows that count; of the ops one by one
  };
  Made run_it(const MoeTailStep& step, bool in_one) {
    const int rows = step.rows;
    const auto n = std::size_t(rows), hidden = std::size_t(shape_.hidden);
    Rows residual(device_, DType::f32, rows, shape_.hidden, random_floats(n * hidden, step.seed)),
        x(device_, dtype_, rows, shape_.hidden),
        attended(device_, dtype_, rows, q_width_, random_floats(n * std::size_t(q_width_), step.seed + 1)),
        q(device_, dtype_, rows, q_width_);
    KvCache kv{.dtype = dtype_,
               .layers = kMoeTailLayers,
               .kv_heads = shape_.kv_heads,
               .head_dim = shape_.head_dim,
               .format = step.kv};
    const Memory unquantised(device_, kv.unquantised_bytes(rows) + 64),
        kv_memory(device_, std::size_t{kMoeTailBlocks} * kv.block_bytes()),
        chosen(device_, n * std::size_t(shape_.top_k) * sizeof(std::int32_t));
    kv.data = kv_memory.as();
    Memory slots(device_, n * sizeof(KvSlot));
    for (int r = 0; r < rows; ++r) slots.change<KvSlot>()[r] = {r % kMoeTailBlocks, 7 * r % kBlockTokens};
    const bool padding = step.padding && device_.is_cuda();
    if (padding) slots.change<KvSlot>()[rows - 1].block = kPaddingBlock;
    const Rows rope(device_, DType::f32, rows, shape_.head_dim,
                    random_floats(n * std::size_t(shape_.head_dim), step.seed + 2));
    const auto norm = [&](int which) {
      return AddRmsNorm{.out = x.data(),
                        .residual = residual.floats(),
                        .weight = norms_[which],
                        .dtype = dtype_,
                        .rows = rows,
                        .cols = shape_.hidden,
                        .eps = 1e-5f};
    };
    MoeTail op{.attention_out = {.residual = residual.floats(),
                                 .x = attended.data(),
                                 .weight = out_.matrix,
                                 .rows = rows},
               .moe = router_.op(residual, x.data(), rows)};
    op.moe.gate_up = gate_up_;
    op.moe.down = down_;
    op.moe.first = shape_.first;
    op.moe.held = shape_.held;
    op.moe.shared = shape_.shared;
    op.moe.norm = norm(0);
    op.moe.slots = slots.as<KvSlot>();
    op.moe.chosen = chosen.as<std::int32_t>();
    if (step.with_next)
      op.next = {.q = q.data(),
                 .x = x.data(),
                 .weight = qkv_.matrix,
                 .rope = rope.floats(),
                 .kv = kv,
                 .layer = 1,
                 .heads = shape_.heads,
                 .batch = {.slots = slots.as<KvSlot>(), .count = rows, .rows = rows},
                 .norm = norm(1),
                 .unquantised = unquantised.as()};
    Made made;
    if (in_one) {
      run(device_, op);
    } else {
      run(device_, op.attention_out);
      run(device_, norm(0));
      for (int r = 0; r < rows - int(padding); ++r) made.gap = std::min(made.gap, router_.choose(x, r).gap);
      op.moe.norm = {};
      run(device_, op.moe);
      op.next.norm = {};
      if (step.with_next) {
        run(device_, norm(1));
        run(device_, op.next);
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < shape_.hidden; ++i) made.residual.push_back(residual.at(r, i));
      for (int i = 0; i < q_width_; ++i) made.q.push_back(q.at(r, i));
    }
    for (int i = 0; i < rows * shape_.top_k; ++i) made.chosen.push_back(chosen.host<std::int32_t>()[i]);
    made.kv = kv_numbers(kv, kv_memory);
    return made;
  }

 private:
  Weight weight(const WeightFormat& format, int outputs, int inputs) {
    return Weight(
        device_, format, outputs, inputs,
        random_floats(std::size_t(outputs) * std::size_t(inputs), ++seed_, 1 / std::sqrt(float(inputs))));
  }
  const float* norm_weight() { return random_norm_weight(device_, dtype_, shape_.hidden, ++seed_); }
  /// All keys and values; codes times their tokens' scales. Heads are a multiple of 32 wide.
  std::vector<float> kv_numbers(const KvCache& kv, const Memory& memory) const {
    std::vector<float> all;
    const std::byte* host = memory.host();
    for (std::size_t piece = 0; piece < memory.bytes(); piece += kv.piece_bytes()) {
      const bool values = piece / kv.piece_bytes() / std::size_t(kv.kv_heads) % 2 == 1;
      const auto* scales = reinterpret_cast<const float*>(host + piece + kv.code_bytes());
      for (int i = 0; i < int(kv.piece_elements()); ++i) {
        const int token = device_.is_cuda() ? i / kv.head_dim
                          : values          ? i / kPanel % kBlockTokens
                                            : i / (kPanel * kv.head_dim) * kPanel + i % kPanel;
        all.push_back(kv.quantised() ? float(std::int8_t(host[piece + std::size_t(i)])) * scales[token]
                                     : load_element(host + piece, dtype_, std::size_t(i)));
      }
    }
    return all;
  }

  DeviceUnderTest& device_;
  DType dtype_;
  MoeTailShape shape_;
  int q_width_;
  std::uint32_t seed_ = 100;
  Weight out_, qkv_;
  MoeLayer router_;  ///< its experts are not used
  MatrixStack gate_up_, down_;
  Memory gate_up_memory_, down_memory_;
  const float* norms_[2];
};

class MoeTails : public OpTest {
 protected:
  void expect_ops(const WeightFormat& attention, const WeightFormat& experts);
};
TROUPE_ALL_DEVICES(MoeTails);

void MoeTails::expect_ops(const WeightFormat& attention, const WeightFormat& experts) {
  for (const MoeTailShape& shape : {MoeTailShape{2560, 20, 4, 128, 256, 16, 2, 6},
                                    {96, 3, 1, 32, 40, 8, 1, 2},  // no multiple of 128 bytes of codes
                                    {512, 4, 1, 128, 128, 12, 0, 3},
                                    {512, 4, 2, 64, 128, 12, 1, 4, 3, 6}}) {
    if (!where().cuda && shape.hidden > 1000) continue;
    MoeTailLayer layer(device(), attention, experts, shape);
    for (const auto& [rows, padding] :
         {std::pair{1, false}, {2, true}, {2, false}, {3, true}, {5, true}, {1, false}}) {
      MoeTailStep step{rows, padding, false, KvFormat::plain, std::uint32_t(1000 * rows)};
      for (int tries = 1; layer.run_it(step, false).gap < kClearGap; step.seed += 3)
        ASSERT_LT(tries++, 100) << "no clear choices";
      for (const auto& [with_next, kv] :
           {std::pair{true, KvFormat::plain}, {true, KvFormat::int8}, {false, KvFormat::plain}}) {
        step.with_next = with_next;
        step.kv = kv;
        SCOPED_TRACE(testing::Message()
                     << "experts " << to_string(experts) << ", hidden " << shape.hidden << ", "
                     << shape.shared << " shared slices, " << rows << " rows" << (padding ? ", padding" : "")
                     << (kv == KvFormat::int8 ? ", int8 KV" : "") << (with_next ? "" : ", the last"));
        const auto one = layer.run_it(step, true), apart = layer.run_it(step, false);
        EXPECT_EQ(one.chosen, apart.chosen);
        expect_near(one.residual, apart.residual, dtype(), "residual");
        expect_near(one.q, apart.q, dtype(), "q");
        expect_near(one.kv, apart.kv, dtype(), "kv");
      }
    }
  }
}

TEST_P(MoeTails, IsItsOpsOneAfterTheOther) { expect_ops(dtype(), dtype()); }

TEST_P(MoeTails, OfQuantisedWeightsIsItsOps) {
  if (!where().cuda) GTEST_SKIP() << "the CPU runs the ops themselves";
  if (dtype() != DType::bf16) GTEST_SKIP() << "experts of a few rows take bfloat16";
  const WeightFormat int8(WeightKind::int8, dtype());
  expect_ops(int8, int8);
  expect_ops(int8, WeightFormat(WeightKind::int4, dtype()));
  expect_ops(int8, WeightFormat(WeightKind::int4, dtype(), 64));
}

}  // namespace
}  // namespace troupe::kernels
