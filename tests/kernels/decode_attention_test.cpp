// The GPU's attention kernels for decode, compared with double precision. The tests write KV memory directly,
// so long pasts, many sequences and permuted blocks are cheap.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "gpu/cuda_graph.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/device_under_test.h"
#include "kernels/head_shape.h"

namespace troupe::kernels {
namespace {

/// Numbers of about unit variance, computed from an index.
float normal_number(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = (seed << 40) + i * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return (float(x & 0xffff) + float(x >> 16 & 0xffff) + float(x >> 32 & 0xffff)) * (2.0f / 65535) - 3;
}

/// A batch of sequences with keys, values and queries. Memory that no token owns is NaN.
class DecodeScene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;

  DecodeScene(Cuda& cuda, DType dtype, HeadShape shape, const std::vector<StepPart>& pieces, int padding = 0)
      : device_(cuda), dtype_(dtype), shape_(shape), pieces_(pieces), padding_(padding) {
    std::vector<int> first;
    int blocks = 1;
    for (const StepPart& piece : pieces) {
      first.push_back(blocks);
      blocks += (piece.position + piece.tokens + kBlockTokens - 1) / kBlockTokens;
      rows_ += piece.tokens;
    }
    std::vector<BlockId> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    kv_ = {.dtype = dtype, .layers = kLayers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
    std::vector<std::byte> memory(std::size_t(blocks) * kv_.block_bytes());
    for (std::size_t i = 0; i < memory.size() / size_of(dtype); ++i) {
      store_element(memory.data(), dtype, i, std::numeric_limits<float>::quiet_NaN());
    }
    const bool swizzled = cuda::swizzled(dtype, shape.head_dim);
    const BlockId* table = device_.put(order);
    int row = 0;
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      for (int t = 0; t < pieces[s].position + pieces[s].tokens; ++t) {
        const BlockId block = order[std::size_t(first[s] + t / kBlockTokens)];
        for (int h = 0; h < shape.kv_heads; ++h) {
          for (int d = 0; d < shape.head_dim; ++d) {
            const auto at = std::size_t(cuda::kv_index(swizzled, shape.head_dim, t % kBlockTokens, d));
            store_element(memory.data() + kv_.key_offset(block, kLayer, h), dtype, at, key(int(s), h, t, d));
            store_element(memory.data() + kv_.value_offset(block, kLayer, h), dtype, at,
                          value(int(s), h, t, d));
          }
        }
      }
      sequences_.push_back({table + first[s], pieces[s].position, pieces[s].tokens, row});
      row += pieces[s].tokens;
    }
    for (int i = 0; i < padding; ++i) sequences_.push_back({nullptr, 0, 0, row + i});
    kv_.data = device_.put(memory);
    const int width = padded(shape.heads * shape.head_dim);
    std::vector<std::byte> q(std::size_t(rows_ + padding) * std::size_t(width) * size_of(dtype));
    for (int r = 0; r < rows_; ++r) {
      for (int i = 0; i < shape.heads * shape.head_dim; ++i) {
        store_element(q.data(), dtype, std::size_t(r * width + i), query(r, i));
      }
    }
    op_ = {.q = device_.put(q),
           .kv = kv_,
           .layer = kLayer,
           .heads = shape.heads,
           .scale = 1 / std::sqrt(float(shape.head_dim)),
           .batch = {device_.put(sequences_), nullptr, int(sequences_.size()), rows_ + padding},
           .settled = true};
  }

  enum class Way { chosen, generic };

  /// The rows' outputs, padding columns included.
  std::vector<std::byte> run_op(Way way = Way::chosen) {
    const std::size_t bytes = row_bytes() * std::size_t(rows_ + padding_);
    std::vector<std::byte> out(bytes, std::byte{0xff});
    Attention op = op_;
    op.out = device_.put(out);
    device_.call([&] {
      if (way == Way::generic) {
        cuda::run_generic_attention(device_.cuda(), op);
      } else {
        run(device_.cuda(), op);
      }
    });
    device_.download(out.data(), op.out, bytes);
    return out;
  }

  /// Captures the op in a graph, replaces the sequences by `pieces` (with pasts no longer than before) and
  /// launches the graph.
  std::vector<std::byte> replay(const std::vector<StepPart>& pieces) {
    const std::size_t bytes = row_bytes() * std::size_t(rows_ + padding_);
    std::vector<std::byte> out(bytes);
    Attention op = op_;
    op.out = device_.put(out);
    run(device_.cuda(), op);  // allocates working memory, which is not allowed during capture
    const CudaGraph graph = CudaGraph::capture(device_.cuda(), [&] { run(device_.cuda(), op); });
    pieces_ = pieces;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      sequences_[s].position = s < pieces.size() ? pieces[s].position : 0;
      sequences_[s].tokens = s < pieces.size() ? pieces[s].tokens : 0;
    }
    device_.upload(const_cast<SequenceRows*>(op.batch.sequences), sequences_.data(),
                   sequences_.size() * sizeof(SequenceRows));
    device_.call([&] { graph.launch(device_.cuda()); });
    device_.download(out.data(), op.out, bytes);
    return out;
  }

  /// Largest difference from double precision, over every `step`-th row and the last of each sequence.
  double worst(const std::vector<std::byte>& out, int step = 1) const {
    double worst = 0;
    int row = 0;
    for (std::size_t s = 0; s < pieces_.size(); ++s) {
      for (int t = 0; t < pieces_[s].tokens; ++t, ++row) {
        if (t % step != 0 && t != pieces_[s].tokens - 1) continue;
        for (int h = 0; h < shape_.heads; ++h) {
          const auto expected = reference(int(s), row, h, pieces_[s].position + t + 1);
          for (int d = 0; d < shape_.head_dim; ++d) {
            const float got = load_element(out.data() + std::size_t(row) * row_bytes(), dtype_,
                                           std::size_t(h * shape_.head_dim + d));
            const double error = std::abs(double(got) - expected[std::size_t(d)]);
            worst = error <= worst ? worst : error;  // true for NaN as well
            if (std::isnan(error)) return error;
          }
        }
      }
    }
    return worst;
  }

  double tolerance() const { return 2e-5 + 3 * rounding_unit(dtype_); }
  std::size_t row_bytes() const {
    return std::size_t(padded(shape_.heads * shape_.head_dim)) * size_of(dtype_);
  }
  const Attention& op() const { return op_; }
  void settle(bool settled) { op_.settled = settled; }

 private:
  float key(int s, int h, int t, int d) const {
    return rounded_to(
        dtype_, normal_number(std::uint64_t(s * 64 + h + 1), std::uint64_t(t) * 512 + std::uint64_t(d)));
  }
  float value(int s, int h, int t, int d) const {
    return rounded_to(dtype_, normal_number(std::uint64_t(s * 64 + h + 1),
                                            std::uint64_t(t) * 512 + 256 + std::uint64_t(d)));
  }
  float query(int row, int i) const {
    return rounded_to(dtype_, 1.5f * normal_number(0, std::uint64_t(row) * 65536 + std::uint64_t(i)));
  }

  std::vector<double> reference(int s, int row, int h, int length) const {
    const int kv_head = h / (shape_.heads / shape_.kv_heads);
    std::vector<double> p(static_cast<std::size_t>(length)), out(static_cast<std::size_t>(shape_.head_dim));
    std::vector<float> q;
    for (int d = 0; d < shape_.head_dim; ++d) q.push_back(query(row, h * shape_.head_dim + d));
    double most = -1e30, sum = 0;
    for (int t = 0; t < length; ++t) {
      double score = 0;
      for (int d = 0; d < shape_.head_dim; ++d) score += double(q[std::size_t(d)]) * key(s, kv_head, t, d);
      p[std::size_t(t)] = score * double(op_.scale);
      most = std::max(most, p[std::size_t(t)]);
    }
    for (double& v : p) sum += v = std::exp(v - most);
    for (int t = 0; t < length; ++t) {
      if (p[std::size_t(t)] < 1e-9) continue;
      for (int d = 0; d < shape_.head_dim; ++d)
        out[std::size_t(d)] += p[std::size_t(t)] / sum * value(s, kv_head, t, d);
    }
    return out;
  }

  DeviceUnderTest device_;
  DType dtype_;
  HeadShape shape_;
  std::vector<StepPart> pieces_;
  int padding_ = 0, rows_ = 0;
  KvCache kv_;
  std::vector<SequenceRows> sequences_;
  Attention op_;
};

class DecodeAttention : public OnCuda {};
INSTANTIATE_TEST_SUITE_P(OnCuda, DecodeAttention, testing::ValuesIn(all_dtypes()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

std::string name(HeadShape s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + "/" + std::to_string(s.head_dim);
}

constexpr HeadShape kDecodeShapes[] = {{8, 1, 128}, {5, 1, 128}, {20, 4, 128}, {16, 2, 128},
                                       {9, 3, 64},  {2, 2, 64},  {1, 1, 128},  {8, 1, 64},
                                       {9, 1, 64},  {3, 1, 48},  {2, 1, 256}};

TEST_P(DecodeAttention, MixedLengthsAtPageBoundaries) {
  for (const HeadShape& shape : kDecodeShapes) {
    DecodeScene scene(usual(), dtype(), shape,
                      {{0}, {62}, {63}, {64}, {1}, {700}, {127}, {128}, {14}, {15}, {16}}, 3);
    EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(shape);
    EXPECT_LE(scene.worst(scene.run_op(DecodeScene::Way::generic)), scene.tolerance()) << name(shape);
  }
}

TEST_P(DecodeAttention, OneSequence) {
  for (const HeadShape& shape :
       {HeadShape{20, 4, 128}, HeadShape{16, 2, 128}, HeadShape{9, 3, 64}, HeadShape{64, 8, 128}}) {
    for (const int position : {0, 100, 2047}) {
      DecodeScene scene(usual(), dtype(), shape, {{position}});
      EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(shape) << " " << position;
    }
  }
}

// Few sequences of similar length: a cluster of thread blocks runs each item and splits its pages evenly;
// some blocks may get none. Lengths that differ much: all pages are split over all thread blocks.
TEST_P(DecodeAttention, FewSequences) {
  for (const HeadShape& shape : {HeadShape{16, 2, 128}, HeadShape{20, 4, 128}, HeadShape{5, 1, 128},
                                 HeadShape{8, 1, 64}, HeadShape{9, 3, 64}, HeadShape{34, 17, 64}}) {
    for (const auto& pieces :
         std::vector<std::vector<StepPart>>{{{63}},
                                            {{64}, {448}, {511}, {512}},
                                            {{575}, {0}, {600}},
                                            {{2047}, {1900}, {2100}, {2000}, {1}, {64}, {2500}, {130}},
                                            {{20}, {6000}},
                                            {{6000}, {5000}}}) {
      DecodeScene scene(usual(), dtype(), shape, pieces, pieces.size() < 4 ? 2 : 0);
      EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(shape) << " " << pieces.size();
    }
  }
}

TEST_P(DecodeAttention, LongPast) {
  if (dtype() == DType::f32) GTEST_SKIP() << "The generic way has no case of its own for a long past.";
  for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{3, 1, 64}}) {
    DecodeScene scene(usual(), dtype(), shape, {{40000}, {3}, {131071}});
    EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(shape);
  }
}

TEST_P(DecodeAttention, ManySequences) {
  std::vector<StepPart> pieces;
  for (int i = 0; i < 300; ++i) pieces.push_back({int(unsigned(i * 2654435761u) % 400) * (i % 3)});
  DecodeScene scene(usual(), dtype(), {5, 1, 64}, pieces, 20);
  EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance());
}

TEST_P(DecodeAttention, PromptsBesideDecodeRows) {
  for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{6, 2, 64}, HeadShape{3, 1, 48}}) {
    const std::vector<StepPart> pieces{{200}, {0, 150}, {0}, {77, 70}, {64, 2}, {511}};
    DecodeScene scene(usual(), dtype(), shape, pieces);
    EXPECT_LE(scene.worst(scene.run_op(), 7), scene.tolerance()) << name(shape);
    DecodeScene other(invariant(), dtype(), shape, pieces, 5);
    EXPECT_LE(other.worst(other.run_op(), 7), other.tolerance()) << name(shape);
  }
}

// The small ring, no clusters, prompts by mma.sync.
TEST_P(DecodeAttention, OnCardsWithoutWgmma) {
  if (dtype() == DType::f32) GTEST_SKIP() << "fp32 has the generic way alone.";
  for (const char* card : kCardsWithoutWgmma) {
    SCOPED_TRACE(card);
    Cuda& device = cuda_like(card);
    for (const HeadShape& shape : {HeadShape{8, 1, 128}, HeadShape{5, 1, 128}, HeadShape{20, 4, 128},
                                   HeadShape{9, 3, 64}, HeadShape{1, 1, 128}, HeadShape{8, 1, 64}}) {
      for (const auto& pieces : std::vector<std::vector<StepPart>>{
               {{0}},
               {{2047}},
               {{0}, {62}, {63}, {64}, {1}, {700}, {127}, {128}, {14}, {15}, {16}},
               {{575}, {0}, {6000}},
               {{200}, {0, 150}, {0}, {77, 70}, {64, 2}, {511}}}) {
        DecodeScene scene(device, dtype(), shape, pieces, 3);
        const auto out = scene.run_op();
        EXPECT_LE(scene.worst(out, 7), scene.tolerance()) << name(shape) << " " << pieces.size();
        EXPECT_EQ(std::memcmp(out.data(), scene.run_op().data(), out.size()), 0)
            << "the same bits every time";
      }
    }
    DecodeScene long_past(device, dtype(), {5, 1, 128}, {{40000}, {3}});
    EXPECT_LE(long_past.worst(long_past.run_op()), long_past.tolerance());
    DecodeScene graph(device, dtype(), {5, 1, 128}, {{3000}, {64}, {900}, {500}, {20}}, 3);
    EXPECT_LE(graph.worst(graph.replay({{1}, {63}, {777}, {2}})), graph.tolerance());
    const cuda::AttentionShape asked{
        .dtype = dtype(), .heads = 5, .kv_heads = 1, .head_dim = 128, .rows = 9, .sequences = 4};
    const cuda::AttentionChoice choice = choose(asked, cuda::traits_of(device));
    EXPECT_EQ(choice.decodes, cuda::AttentionWay::decode);
    EXPECT_EQ(choice.pieces, cuda::AttentionWay::flash);
  }
}

// More q heads of a KV head than the decode kernel takes: what decodes is generic, pieces of prompts are not.
TEST_P(DecodeAttention, PromptsOfWideGroupsGoByFlash) {
  if (dtype() == DType::f32) GTEST_SKIP() << "fp32 has the generic way alone.";
  const std::vector<StepPart> pieces{{200}, {0, 150}, {0}, {77, 70}, {64, 2}, {511}};
  for (const HeadShape& shape :
       {HeadShape{12, 1, 128}, HeadShape{24, 2, 128}, HeadShape{9, 1, 64}, HeadShape{48, 1, 64}}) {
    SCOPED_TRACE(name(shape));
    const cuda::AttentionChoice choice = choose(cuda::AttentionShape{.dtype = dtype(),
                                                                     .heads = shape.heads,
                                                                     .kv_heads = shape.kv_heads,
                                                                     .head_dim = shape.head_dim,
                                                                     .rows = 225,
                                                                     .sequences = int(pieces.size())},
                                                cuda::traits_of(usual()));
    ASSERT_EQ(choice.decodes, cuda::AttentionWay::generic);
    ASSERT_EQ(choice.pieces, cuda::AttentionWay::flash);
    DecodeScene scene(usual(), dtype(), shape, pieces);
    const auto out = scene.run_op(), generic = scene.run_op(DecodeScene::Way::generic);
    EXPECT_LE(scene.worst(out, 7), scene.tolerance());
    EXPECT_LE(scene.worst(generic, 7), scene.tolerance());
    int row = 0;
    for (const StepPart& piece : pieces) {
      const std::size_t begin = std::size_t(row) * scene.row_bytes(),
                        bytes = std::size_t(piece.tokens) * scene.row_bytes();
      const bool same = std::memcmp(out.data() + begin, generic.data() + begin, bytes) == 0;
      if (piece.tokens == 1) {
        EXPECT_TRUE(same) << "row " << row;
      } else if (piece.tokens > 8) {
        EXPECT_FALSE(same) << "the generic kernel ran on the piece at row " << row;
      }
      row += piece.tokens;
    }
  }
}

TEST_P(DecodeAttention, GraphsSeeTheLengthsOfTheirLaunch) {
  for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{6, 2, 64}}) {
    DecodeScene scene(usual(), dtype(), shape, {{3000}, {64}, {900}, {500}, {20}}, 3);
    EXPECT_LE(scene.worst(scene.replay({{1}, {63}, {777}, {2}})), scene.tolerance()) << name(shape);
    EXPECT_LE(scene.worst(scene.replay({{0}})), scene.tolerance()) << name(shape);
  }
}

TEST_P(DecodeAttention, SameBitsEveryTime) {
  DecodeScene scene(usual(), dtype(), {10, 2, 128}, {{3000}, {64}, {900}});
  const auto expected = scene.run_op();
  for (int i = 0; i < 6; ++i) {
    scene.settle(i % 2 != 0);
    EXPECT_EQ(std::memcmp(expected.data(), scene.run_op().data(), 3 * scene.row_bytes()), 0);
  }
}

TEST_P(DecodeAttention, BatchInvariantRowsDoNotDependOnOtherRows) {
  for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{3, 1, 64}, HeadShape{3, 1, 40}}) {
    // Sequence 0 is the same in all scenes: positions 1000 … 1002, in the last one only 1000.
    DecodeScene alone(invariant(), dtype(), shape, {{1000, 3}});
    DecodeScene company(invariant(), dtype(), shape, {{1000, 3}, {5000}, {0, 90}, {3}}, 2);
    const auto a = alone.run_op(), b = company.run_op();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), 3 * alone.row_bytes()), 0) << name(shape);
    DecodeScene single(invariant(), dtype(), shape, {{1000}});
    const auto c = single.run_op();
    EXPECT_EQ(std::memcmp(a.data(), c.data(), alone.row_bytes()), 0) << name(shape);
  }
}

TEST_P(DecodeAttention, DoesNotWritePaddingRows) {
  DecodeScene scene(usual(), dtype(), {6, 2, 64}, {{70}, {3}}, 4);
  const auto out = scene.run_op();
  for (std::size_t i = 2 * scene.row_bytes(); i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0xff}) << i;
}

}  // namespace
}  // namespace troupe::kernels
