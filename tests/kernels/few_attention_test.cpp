// The GPU's attention for sequences of a few tokens each, as steps that verify drafts have them, and over
// pasts whose first token is not attended to: compared with double precision. The tests write KV memory
// directly.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "gpu/cuda_graph.h"
#include "kernels/attention.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/scratch.h"
#include "kernels/device_under_test.h"
#include "kernels/head_shape.h"
#include "kernels/quantize_kv.h"

namespace troupe::kernels {
namespace {

/// How a scene's batch looks.
struct Setting {
  HeadShape shape{};
  int most_tokens = 0;  ///< Batch::most_tokens, and so many rows a sequence; 0: only as many as it has tokens
  int first = 0;        ///< Attention::first
  KvFormat format = KvFormat::plain;
  int padding = 0;  ///< sequences without tokens behind the others
};

std::string name(const Setting& s) {
  return std::to_string(s.shape.heads) + "/" + std::to_string(s.shape.kv_heads) + "/" +
         std::to_string(s.shape.head_dim) + ", up to " + std::to_string(s.most_tokens) + " tokens, first " +
         std::to_string(s.first) + ", " + to_string(s.format) + " KV";
}

/// A batch with keys, values and queries. What no token owns is NaN, and so is what is before the first
/// token.
class FewScene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;
  /// A sequence of which nothing else may be read.
  static constexpr SequenceRows kWithoutTokens{nullptr, 1 << 20, 0, 3};

  FewScene(Cuda& cuda, DType dtype, const Setting& setting, const std::vector<StepPart>& pieces)
      : device_(cuda), dtype_(dtype), setting_(setting), pieces_(pieces), random_(5) {
    const HeadShape& shape = setting.shape;
    int blocks = 1;
    for (const StepPart& piece : pieces) {
      first_block_.push_back(blocks);
      blocks += (piece.position + piece.tokens + kBlockTokens - 1) / kBlockTokens;
    }
    order_.resize(std::size_t(blocks));
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(7));
    kv_ = {.dtype = dtype,
           .layers = kLayers,
           .kv_heads = shape.kv_heads,
           .head_dim = shape.head_dim,
           .format = setting.format};
    memory_.assign(std::size_t(blocks) * kv_.block_bytes(), std::byte{0xff});  // NaN in every format
    const BlockId* table = device_.put(order_);
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      keys_.emplace_back(), values_.emplace_back();
      if (pieces[s].tokens == 0) {
        sequences_.push_back(kWithoutTokens);
      } else {
        for (int t = 0; t < pieces[s].position + pieces[s].tokens; ++t) write_token(s, t);
        sequences_.push_back({table + first_block_[s], pieces[s].position, pieces[s].tokens, rows_});
      }
      rows_ += setting.most_tokens > 0 ? setting.most_tokens : pieces[s].tokens;
    }
    for (int i = 0; i < setting.padding; ++i) {
      sequences_.push_back({nullptr, 0, 0, rows_});
      rows_ += std::max(1, setting.most_tokens);
    }
    kv_.data = device_.put(memory_);
    for (int i = 0; i < rows_ * width(); ++i) queries_.push_back(rounded_to(dtype, number(1.5f)));
    std::vector<std::byte> q(std::size_t(rows_) * row_bytes());
    for (int r = 0; r < rows_; ++r) {
      for (int i = 0; i < width(); ++i)
        store_element(q.data() + std::size_t(r) * row_bytes(), dtype, std::size_t(i),
                      queries_[std::size_t(r * width() + i)]);
    }
    op_ = {.q = device_.put(q),
           .kv = kv_,
           .layer = kLayer,
           .heads = shape.heads,
           .scale = 1 / std::sqrt(float(shape.head_dim)),
           .batch = {.sequences = device_.put(sequences_),
                     .count = int(sequences_.size()),
                     .rows = rows_,
                     .most_tokens = setting.most_tokens},
           .settled = true,
           .first = setting.first};
  }

  std::vector<std::byte> run_op(bool settled = true) {
    std::vector<std::byte> out(std::size_t(rows_) * row_bytes(), std::byte{0xff});
    Attention op = op_;
    op.settled = settled;
    op.out = device_.put(out);
    run(device_, op);
    device_.download(out.data(), op.out, out.size());
    return out;
  }

  /// A decode step of one row for each sequence: its token t, or its last.
  std::vector<std::byte> run_single_tokens(int t) {
    const std::size_t count = pieces_.size();
    std::vector<SequenceRows> sequences(sequences_.begin(), sequences_.begin() + std::ptrdiff_t(count));
    std::vector<std::byte> q(count * row_bytes()), out(count * row_bytes());
    for (std::size_t s = 0; s < count; ++s) {
      if (sequences[s].tokens == 0) continue;
      const int row = row_of(s, t);
      for (int i = 0; i < width(); ++i)
        store_element(q.data() + s * row_bytes(), dtype_, std::size_t(i),
                      queries_[std::size_t(row * width() + i)]);
      sequences[s] = {sequences_[s].blocks, sequences_[s].position + row - sequences_[s].row, 1, int(s)};
    }
    Attention op = op_;
    op.q = device_.put(q);
    op.out = device_.put(out);
    op.batch = {.sequences = device_.put(sequences), .count = int(count), .rows = int(count)};
    run(device_, op);
    device_.download(out.data(), op.out, out.size());
    return out;
  }

  /// Captures the op in a graph, replaces the pieces by others with the same or earlier ends, and launches
  /// it.
  std::vector<std::byte> replay(const std::vector<StepPart>& pieces) {
    std::vector<std::byte> out(std::size_t(rows_) * row_bytes(), std::byte{0xff});
    Attention op = op_;
    op.out = device_.put(out);
    run(device_.cuda(), op);  // allocates working memory, which is not allowed during capture
    const CudaGraph graph = CudaGraph::capture(device_.cuda(), [&] { run(device_.cuda(), op); });
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      sequences_[s].position = s < pieces.size() ? pieces[s].position : 0;
      sequences_[s].tokens = s < pieces.size() ? pieces[s].tokens : 0;
    }
    device_.upload(const_cast<SequenceRows*>(op.batch.sequences), sequences_.data(),
                   sequences_.size() * sizeof(SequenceRows));
    device_.upload(op.out, out.data(), out.size());
    device_.call([&] { graph.launch(device_.cuda()); });
    device_.download(out.data(), op.out, out.size());
    return out;
  }

  /// Largest difference from double precision, relative to the row's and head's largest output where that is
  /// above 1; over every `step`-th sequence. Infinity if a row of padding was written.
  double worst(const std::vector<std::byte>& out, std::size_t step = 1) const {
    double worst = 0;
    std::vector<bool> written(std::size_t(rows_), false);
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      for (int t = 0; t < sequences_[s].tokens; ++t) {
        const int row = sequences_[s].row + t;
        written[std::size_t(row)] = true;
        if (s % step != 0) continue;
        for (int h = 0; h < setting_.shape.heads; ++h) {
          const auto expected = reference(s, row, h, sequences_[s].position + t + 1);
          double most = 1;
          for (const double e : expected) most = std::max(most, std::abs(e));
          for (int d = 0; d < setting_.shape.head_dim; ++d) {
            const float got = load_element(out.data() + std::size_t(row) * row_bytes(), dtype_,
                                           std::size_t(h * setting_.shape.head_dim + d));
            const double error = std::abs(double(got) - expected[std::size_t(d)]) / most;
            if (std::isnan(error)) return error;
            worst = std::max(worst, error);
          }
        }
      }
    }
    for (int r = 0; r < rows_; ++r) {
      const auto row = out.begin() + std::ptrdiff_t(std::size_t(r) * row_bytes());
      if (!written[std::size_t(r)] && std::any_of(row, row + std::ptrdiff_t(row_bytes()),
                                                  [](std::byte b) { return b != std::byte{0xff}; }))
        return std::numeric_limits<double>::infinity();
    }
    return worst;
  }

  /// The way that the chooser takes.
  cuda::AttentionChoice choice() { return choose(cuda::shape_of(op_), cuda::traits_of(device_.cuda())); }
  double tolerance() const {
    const bool plain = setting_.format == KvFormat::plain;
    return 2e-5 + (plain ? 3 : 4) * rounding_unit(plain ? dtype_ : DType::bf16);
  }
  int width() const { return setting_.shape.heads * setting_.shape.head_dim; }
  std::size_t row_bytes() const { return std::size_t(padded(width())) * size_of(dtype_); }
  /// Of token t of sequence s, or of its last.
  int row_of(std::size_t s, int t) const { return sequences_[s].row + std::min(t, sequences_[s].tokens - 1); }

 private:
  /// About unit variance.
  float number(float deviation) {
    const std::uint32_t a = random_(), b = random_();
    return deviation * (float(a & 0xffff) + float(a >> 16) + float(b & 0xffff) - 1.5f * 0xffff) * 2.0f /
           0xffff;
  }

  /// Draws a token's keys and values, keeps what they stand for, and writes them if they are attended to.
  void write_token(std::size_t s, int t) {
    const HeadShape& shape = setting_.shape;
    const bool codes = kv_.quantised(), swizzled = cuda::swizzled(dtype_, shape.head_dim);
    const BlockId block = order_[std::size_t(first_block_[s] + t / kBlockTokens)];
    const int at = t % kBlockTokens;
    for (int h = 0; h < 2 * shape.kv_heads; ++h) {
      std::vector<float>& kept = (h < shape.kv_heads ? keys_ : values_)[s];
      std::byte* piece = memory_.data() + kv_.key_offset(block, kLayer, h);
      std::vector<float> numbers;
      float largest = 0;
      for (int d = 0; d < shape.head_dim; ++d) {
        numbers.push_back(rounded_to(dtype_, number(1)));
        largest = std::max(largest, std::abs(numbers.back()));
      }
      const float scale = codes ? kv_scale(kv_.format, largest) : 1;
      const bool written = t >= setting_.first;
      if (codes && written) std::memcpy(piece + kv_.code_bytes() + std::size_t(at) * 4, &scale, 4);
      for (int d = 0; d < shape.head_dim; ++d) {
        const float x = numbers[std::size_t(d)];
        if (codes) {
          const std::uint8_t code = kv_code(kv_.format, x, scale);
          kept.push_back(scale *
                         (kv_.format == KvFormat::int8 ? float(std::int8_t(code)) : e4m3_to_float(code)));
          if (written) piece[cuda::kv_code_index(shape.head_dim, at, d)] = std::byte{code};
        } else {
          kept.push_back(x);
          if (written)
            store_element(piece, dtype_, std::size_t(cuda::kv_index(swizzled, shape.head_dim, at, d)), x);
        }
      }
    }
  }

  std::vector<double> reference(std::size_t s, int row, int h, int length) const {
    const HeadShape& shape = setting_.shape;
    const int kv_head = h / (shape.heads / shape.kv_heads);
    const float* q = &queries_[std::size_t(row * width() + h * shape.head_dim)];
    const auto token = [&](const std::vector<float>& of, int t) {
      return &of[std::size_t((t * shape.kv_heads + kv_head) * shape.head_dim)];
    };
    std::vector<double> p(std::size_t(length), 0), out(std::size_t(shape.head_dim));
    double most = -1e30, sum = 0;
    for (int t = setting_.first; t < length; ++t) {
      p[std::size_t(t)] =
          std::inner_product(q, q + shape.head_dim, token(keys_[s], t), 0.0) * double(op_.scale);
      most = std::max(most, p[std::size_t(t)]);
    }
    for (int t = setting_.first; t < length; ++t)
      sum += p[std::size_t(t)] = std::exp(p[std::size_t(t)] - most);
    for (int t = setting_.first; t < length; ++t) {
      const double weight = p[std::size_t(t)] / sum;
      if (weight < 1e-10) continue;
      const float* v = token(values_[s], t);
      for (int d = 0; d < shape.head_dim; ++d) out[std::size_t(d)] += weight * double(v[d]);
    }
    return out;
  }

  DeviceUnderTest device_;
  DType dtype_;
  Setting setting_;
  std::vector<StepPart> pieces_;
  std::mt19937 random_;
  std::vector<int> first_block_;
  std::vector<BlockId> order_;
  KvCache kv_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<float>> keys_, values_;  ///< of a sequence: token, KV head, dimension
  std::vector<float> queries_;
  int rows_ = 0;
  std::vector<SequenceRows> sequences_;
  Attention op_;
};

class FewAttention : public OnCuda {
 protected:
  /// Plain KV, and 8-bit KV where the tensor core kernels take it.
  std::vector<KvFormat> formats() const {
    if (dtype() != DType::bf16) return {KvFormat::plain};
    return {KvFormat::plain, KvFormat::int8, KvFormat::fp8};
  }
};
INSTANTIATE_TEST_SUITE_P(OnCuda, FewAttention, testing::ValuesIn(all_dtypes()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

constexpr HeadShape kFewShapes[] = {{5, 1, 128}, {16, 2, 128}, {8, 1, 64},
                                    {10, 2, 64}, {2, 2, 128},  {1, 1, 64}};
constexpr int kMostTokens[] = {2, 3, 5, 9};

/// Sequences at these positions with 1 … most tokens in turn, the longest first.
std::vector<StepPart> in_turn(const std::vector<int>& positions, int most) {
  std::vector<StepPart> pieces;
  for (const int position : positions) pieces.push_back({position, most - int(pieces.size()) % most});
  return pieces;
}

TEST_P(FewAttention, AtPageBorders) {
  for (const KvFormat format : formats()) {
    for (const HeadShape& shape : kFewShapes) {
      for (const int most : kMostTokens) {
        for (const int first : {0, 1}) {
          const Setting setting{shape, most, first, format, 2};
          SCOPED_TRACE(name(setting));
          // Of 11 sequences, pages are divided among all blocks.
          FewScene scene(usual(), dtype(), setting,
                         in_turn({1, 62, 63, 64, 60, 700, 127, 128, 14, 15, 56}, most));
          EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance());
          if (!usual().features().wgmma || dtype() == DType::f32) continue;
          EXPECT_EQ(scene.choice().decodes, cuda::AttentionWay::few);
        }
      }
    }
  }
}

// A cluster of thread blocks for each item: some blocks have no pages, and some pages no token that the first
// row sees.
TEST_P(FewAttention, OneSequence) {
  for (const KvFormat format : formats()) {
    for (const HeadShape& shape : kFewShapes) {
      for (const int most : kMostTokens) {
        const Setting setting{shape, most, 0, format};
        SCOPED_TRACE(name(setting));
        for (const StepPart& piece : {StepPart{0, most}, StepPart{63, most}, StepPart{447, 1},
                                      StepPart{512 - most, most}, StepPart{511, most}, StepPart{2047, 2}}) {
          FewScene scene(usual(), dtype(), setting, {piece});
          EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << piece.position << " " << piece.tokens;
        }
      }
    }
  }
}

TEST_P(FewAttention, FewSequences) {
  for (const KvFormat format : formats()) {
    for (const HeadShape& shape : {HeadShape{10, 2, 128}, HeadShape{16, 2, 64}, HeadShape{20, 4, 128}}) {
      if (format != KvFormat::plain && shape.kv_heads == 4) continue;
      for (const int most : kMostTokens) {
        for (const auto& positions : std::vector<std::vector<int>>{{64, 448, 510, 511},
                                                                   {575, 1, 600},
                                                                   {2047, 1900, 2100, 2000, 1, 64, 2500, 130},
                                                                   {20, 5000},
                                                                   {3000, 2500}}) {
          const Setting setting{shape, most, most == 3 ? 1 : 0, format, positions.size() < 4 ? 2 : 0};
          FewScene scene(usual(), dtype(), setting, in_turn(positions, most));
          EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(setting) << " " << positions[0];
        }
      }
    }
  }
}

TEST_P(FewAttention, LongPast) {
  if (dtype() == DType::f32) GTEST_SKIP() << "The generic way has no case of its own for a long past.";
  for (const KvFormat format : formats()) {
    for (const int most : {2, 9}) {
      const Setting setting{{5, 1, 64}, most, 0, format};
      FewScene scene(usual(), dtype(), setting, {{40000, 1}, {3, 2}, {65535, most}});
      EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance()) << name(setting);
    }
  }
}

TEST_P(FewAttention, ManySequences) {
  for (const KvFormat format : formats()) {
    for (const auto& [shape, count] :
         {std::pair{HeadShape{8, 1, 64}, 64}, {HeadShape{8, 1, 64}, 300}, {HeadShape{5, 1, 128}, 300}}) {
      for (const int most : kMostTokens) {
        std::vector<StepPart> pieces;
        for (int i = 0; i < count; ++i)
          pieces.push_back({int(unsigned(i * 2654435761u) % 400) * (i % 3), 1 + i * 7 % most});
        const Setting setting{shape, most, 0, format, 20};
        FewScene scene(usual(), dtype(), setting, pieces);
        EXPECT_LE(scene.worst(scene.run_op(), 5), scene.tolerance()) << name(setting) << " " << count;
      }
    }
  }
}

// The first, one between others, the last, or all have no tokens; with 40, whole runs of 32 have none.
TEST_P(FewAttention, SequencesWithoutTokensMayBeAnywhere) {
  const std::vector<std::vector<int>> without{{0}, {2}, {4}, {0, 1, 4}, {0, 1, 2, 3, 4}};
  for (const KvFormat format : formats()) {
    for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{16, 2, 64}, HeadShape{3, 1, 40}}) {
      for (const int most : {1, 2, 5, kMostVerified + 3}) {
        for (const int first : {0, 1}) {
          for (Cuda* cuda : {&usual(), &invariant()}) {
            const Setting setting{shape, most, first, format, 1};
            for (const std::vector<int>& empty : without) {
              auto pieces = in_turn({1000, 70, 63, 4, 130}, most);
              for (const int s : empty) pieces[std::size_t(s)] = {0, 0};
              FewScene scene(*cuda, dtype(), setting, pieces);
              EXPECT_LE(scene.worst(scene.run_op()), scene.tolerance())
                  << name(setting) << ", without tokens: " << empty.size() << " from " << empty[0];
            }
            std::vector<StepPart> many(40, StepPart{0, 0});
            for (const int s : {33, 36, 37}) many[std::size_t(s)] = {60 + s, most};
            FewScene late(*cuda, dtype(), setting, many);
            EXPECT_LE(late.worst(late.run_op()), late.tolerance()) << name(setting);
            std::rotate(many.begin(), many.begin() + 33, many.end());
            FewScene early(*cuda, dtype(), setting, many);
            EXPECT_LE(early.worst(early.run_op()), early.tolerance()) << name(setting);
          }
        }
      }
    }
  }
}

TEST_P(FewAttention, GraphsSeeTheTokensOfTheirLaunch) {
  for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{16, 2, 64}}) {
    const Setting setting{shape, 5, 0, KvFormat::plain, 3};
    FewScene scene(usual(), dtype(), setting, {{3000, 5}, {64, 1}, {900, 3}, {500, 5}, {20, 2}});
    EXPECT_LE(scene.worst(scene.replay({{1, 2}, {60, 4}, {777, 5}, {2, 1}})), scene.tolerance())
        << name(setting);
    EXPECT_LE(scene.worst(scene.replay({{2990, 4}})), scene.tolerance()) << name(setting);
    EXPECT_LE(scene.worst(scene.replay({})), scene.tolerance()) << name(setting);
  }
}

// One that has all its tokens runs none.
TEST_P(FewAttention, TheFirstSequenceMayHaveNoTokens) {
  for (Cuda* cuda : {&usual(), &invariant()}) {
    for (const KvFormat format : formats()) {
      const Setting setting{{16, 2, 64}, 3, 1, format, 1};
      FewScene scene(*cuda, dtype(), setting, {{64, 1}, {900, 3}, {500, 3}, {20, 2}});
      EXPECT_LE(scene.worst(scene.replay({{64, 0}, {900, 2}, {1, 0}, {20, 1}})), scene.tolerance())
          << name(setting);
    }
  }
}

TEST_P(FewAttention, SameBitsEveryTime) {
  for (const int most : kMostTokens) {
    FewScene scene(usual(), dtype(), {{10, 2, 128}, most}, in_turn({3000, 64, 900}, most));
    const auto expected = scene.run_op();
    for (int i = 0; i < 6; ++i) EXPECT_EQ(expected, scene.run_op(i % 2 != 0)) << most;
  }
}

// Padding rows between the sequences change nothing, and neither do the sequence's other tokens.
TEST_P(FewAttention, BatchInvariantRowsAreThoseOfSingleTokens) {
  for (const KvFormat format : formats()) {
    for (const HeadShape& shape : {HeadShape{5, 1, 128}, HeadShape{16, 2, 64}, HeadShape{3, 1, 40}}) {
      for (const int first : {0, 1}) {
        const Setting setting{shape, 5, first, format, 2};
        SCOPED_TRACE(name(setting));
        FewScene scene(invariant(), dtype(), setting, {{0, 0}, {1000, 3}, {70, 1}, {0, 0}, {63, 5}, {4, 2}});
        const auto together = scene.run_op();
        EXPECT_LE(scene.worst(together), scene.tolerance());
        for (int t = 0; t < setting.most_tokens; ++t) {
          const auto alone = scene.run_single_tokens(t);
          for (const std::size_t s : {1, 2, 4, 5}) {
            EXPECT_EQ(std::memcmp(together.data() + std::size_t(scene.row_of(s, t)) * scene.row_bytes(),
                                  alone.data() + s * scene.row_bytes(), scene.row_bytes()),
                      0)
                << "sequence " << s << ", token " << t;
          }
        }
      }
    }
  }
}

// The draft layer's prompts and decode rows: the batch says nothing about the tokens of a sequence.
TEST_P(FewAttention, FirstTokenIsSkippedByEveryWay) {
  for (const KvFormat format : formats()) {
    for (const HeadShape& shape :
         {HeadShape{5, 1, 128}, HeadShape{16, 2, 64}, HeadShape{12, 1, 128}, HeadShape{3, 1, 48}}) {
      if (format != KvFormat::plain && shape.head_dim == 48) continue;
      for (Cuda* cuda : {&usual(), &invariant()}) {
        const Setting setting{shape, 0, 1, format};
        FewScene mixed(*cuda, dtype(), setting,
                       {{200, 1}, {1, 150}, {1, 1}, {77, 70}, {64, 2}, {511, 1}, {2000, 140}});
        EXPECT_LE(mixed.worst(mixed.run_op()), mixed.tolerance()) << name(setting);
        FewScene single(*cuda, dtype(), setting, {{1, 1}, {63, 1}, {64, 1}, {1000, 1}});
        EXPECT_LE(single.worst(single.run_op()), single.tolerance()) << name(setting);
        FewScene prompt(*cuda, dtype(), setting, {{1, 300}});
        EXPECT_LE(prompt.worst(prompt.run_op()), prompt.tolerance()) << name(setting);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
