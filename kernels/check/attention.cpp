// Checks of the projection into KV memory, and of attention over it by each of its ways.
#include "kernels/attention.h"

#include "kernels/check/side.h"
#include "kernels/check/weights.h"
#include "kernels/cuda/attention/choose.h"
#include "kernels/cuda/product/layout.h"
#include "kernels/linear_add.h"
#include "kernels/qkv_rope_kv_write.h"
#include "kernels/rope_table.h"

namespace troupe::kernels::check {
namespace {

struct Heads {
  int heads, kv_heads, head_dim;
  int width() const { return heads * head_dim; }
  int outputs() const { return (heads + 2 * kv_heads) * head_dim; }
};
constexpr Heads kErnie{16, 2, 128}, kDemo{9, 3, 64}, kOdd{4, 2, 40};

/// Tokens [position, position + tokens) of a sequence.
struct Piece {
  int position = 0, tokens = 1;
  int end() const { return position + tokens; }
};

struct Scene {
  DType dtype = DType::bf16;
  KvFormat kv = KvFormat::plain;
  Heads heads = kErnie;
  std::vector<Piece> pieces;
  int most_tokens = 0;

  int rows() const {
    int all = 0;
    for (const Piece& piece : pieces) all += piece.tokens;
    return all;
  }
  cuda::AttentionShape shape() const {
    return {
        dtype,      kv, heads.heads, heads.kv_heads, heads.head_dim, rows(), static_cast<int>(pieces.size()),
        most_tokens};
  }
};

/// KV memory of one side, and what a step over it needs.
template <class D>
class Cache {
 public:
  static constexpr int kLayers = 2, kLayer = 1;

  Cache(Side<D>& side, const Scene& scene) : side_(side), scene_(scene) {
    kv_ = {.dtype = scene.dtype,
           .layers = kLayers,
           .kv_heads = scene.heads.kv_heads,
           .head_dim = scene.heads.head_dim,
           .format = scene.kv};
    int blocks = 0;
    for (const Piece& piece : scene.pieces) blocks += blocks_of(piece.end());
    bytes_ = static_cast<std::size_t>(blocks) * kv_.block_bytes();
    kv_.data = side.template room<std::byte>(bytes_);
    BlockId next = blocks;  // a sequence's blocks lie in falling order
    for (const Piece& piece : scene.pieces) {
      auto& table = tables_.emplace_back();
      for (int i = 0; i < blocks_of(piece.end()); ++i) table.push_back(--next);
    }
  }

  const KvCache& kv() const { return kv_; }
  std::size_t bytes() const { return bytes_; }
  const std::vector<BlockId>& table(std::size_t sequence) const { return tables_[sequence]; }

  /// The batch of these pieces, whose rows are in order.
  Batch batch(const std::vector<Piece>& pieces, int most_tokens, std::vector<std::int32_t>& positions) {
    std::vector<SequenceRows> sequences;
    std::int32_t rows = 0;
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      sequences.push_back({tables_[s].data(), pieces[s].position, pieces[s].tokens, rows});
      rows += pieces[s].tokens;
    }
    std::vector<KvSlot> slots(static_cast<std::size_t>(rows));
    positions.resize(static_cast<std::size_t>(rows));
    describe_rows(sequences.data(), static_cast<int>(sequences.size()), slots.data(), positions.data());
    for (std::size_t s = 0; s < pieces.size(); ++s) sequences[s].blocks = side_.put(tables_[s]);
    return {side_.put(sequences), side_.put(slots), static_cast<std::int32_t>(sequences.size()), rows,
            most_tokens};
  }

  /// Computes queries, keys and values of these pieces; the queries.
  Numbers project(const std::vector<Piece>& pieces, const WeightFormat& format, int hidden) {
    const Heads& h = scene_.heads;
    std::vector<std::int32_t> positions;
    const Batch rows = batch(pieces, 0, positions);
    std::vector<float> frequencies(static_cast<std::size_t>(h.head_dim / 2));
    rope_inverse_frequencies(frequencies.data(), h.head_dim, 10000);
    // From the host: the table has a check of its own.
    std::vector<float> rope;
    for (const std::int32_t position : positions) {
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(position) * frequency;
        rope.push_back(std::cos(angle));
        rope.push_back(std::sin(angle));
      }
    }
    void* const q = side_.rows(scene_.dtype, rows.rows, h.width());
    run(side_.device(),
        QkvRopeKvWrite{.q = q,
                       .x = exact_rows(side_, format, rows.rows, hidden, 81),
                       .weight = exact_matrix(side_, format, h.outputs(), hidden, 82),
                       .rope = side_.put(rope),
                       .kv = kv_,
                       .layer = kLayer,
                       .heads = h.heads,
                       .batch = rows,
                       .unquantised = side_.template room<std::byte>(kv_.unquantised_bytes(rows.rows))});
    return side_.numbers(scene_.dtype, q, rows.rows, h.width());
  }

  /// Attention of the scene's pieces, whose queries are the last rows of each sequence in `all`, which has
  /// all its positions.
  Numbers attend(const Numbers& all) {
    const Heads& h = scene_.heads;
    const auto width = static_cast<std::size_t>(h.width());
    Numbers queries;
    std::size_t begin = 0;
    for (const Piece& piece : scene_.pieces) {
      const std::size_t first = begin + static_cast<std::size_t>(piece.position),
                        end = begin + static_cast<std::size_t>(piece.end());
      queries.insert(queries.end(), all.begin() + static_cast<std::ptrdiff_t>(first * width),
                     all.begin() + static_cast<std::ptrdiff_t>(end * width));
      begin = end;
    }
    std::vector<std::int32_t> positions;
    const Batch rows = batch(scene_.pieces, scene_.most_tokens, positions);
    void* const out = side_.rows(scene_.dtype, rows.rows, h.width());
    run(side_.device(), Attention{.out = out,
                                  .q = side_.rows(scene_.dtype, rows.rows, h.width(), queries),
                                  .kv = kv_,
                                  .layer = kLayer,
                                  .heads = h.heads,
                                  .scale = 1 / std::sqrt(static_cast<float>(h.head_dim)),
                                  .batch = rows});
    return side_.numbers(scene_.dtype, out, rows.rows, h.width());
  }

 private:
  static int blocks_of(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  Side<D>& side_;
  const Scene& scene_;
  KvCache kv_;
  std::size_t bytes_ = 0;
  std::vector<std::vector<BlockId>> tables_;
};

/// Of the first sequence, token by token: keys of all KV heads, then values.
Numbers keys_and_values(const Cache<Cuda>& cache, Side<Cuda>& side, int tokens) {
  const KvCache& kv = cache.kv();
  const auto memory = side.get(static_cast<const std::byte*>(kv.data), cache.bytes());
  const bool swizzled = cuda::swizzled(kv.dtype, kv.head_dim);
  Numbers numbers;
  for (int t = 0; t < tokens; ++t) {
    const BlockId block = cache.table(0)[static_cast<std::size_t>(t / kBlockTokens)];
    for (int part = 0; part < 2 * kv.kv_heads; ++part) {
      const std::byte* const piece = memory.data() + kv.key_offset(block, Cache<Cuda>::kLayer, part);
      for (int d = 0; d < kv.head_dim; ++d)
        numbers.push_back(load_element(
            piece, kv.dtype,
            static_cast<std::size_t>(cuda::kv_index(swizzled, kv.head_dim, t % kBlockTokens, d))));
    }
  }
  return numbers;
}

std::string text_of(const Scene& scene) { return cuda::to_string(scene.shape()); }

Bound bound_of(const Scene& scene) {
  if (scene.kv != KvFormat::plain) return {0, 0.02};
  return {0, scene.dtype == DType::bf16 ? 8e-3 : scene.dtype == DType::f16 ? 1e-3 : 1e-4};
}

std::optional<KernelWay> avoidable_attention(cuda::AttentionWay way) {
  switch (way) {
    case cuda::AttentionWay::decode: return KernelWay::attention_decode;
    case cuda::AttentionWay::few: return KernelWay::attention_few;
    case cuda::AttentionWay::flash: return KernelWay::attention_flash;
    case cuda::AttentionWay::none:
    case cuda::AttentionWay::generic: break;
  }
  return std::nullopt;
}

/// Of a batch of one kind, which one way takes.
void add_attention(Checks& checks, const Scene& scene) {
  checks.push_back({"Attention", text_of(scene), "QkvRopeKvWrite",
                    [shape = scene.shape()](const cuda::GpuTraits& gpu) {
                      const cuda::AttentionChoice choice = choose(shape, gpu);
                      const cuda::AttentionWay way =
                          choice.pieces == cuda::AttentionWay::none ? choice.decodes : choice.pieces;
                      return TakenWay{to_string(way), avoidable_attention(way)};
                    },
                    on_both(bound_of(scene), [scene](auto& side) {
                      constexpr int kHidden = 64;
                      Cache cache(side, scene);
                      std::vector<Piece> whole;
                      for (const Piece& piece : scene.pieces) whole.push_back({0, piece.end()});
                      return cache.attend(cache.project(whole, scene.dtype, kHidden));
                    })});
}

/// The same queries, keys and values, by a plain product on the CPU and the text of qkv_rope_kv_write.h:
/// queries of all rows, then, of a plain cache, keys and values row by row.
Numbers projected_on_host(Cpu& cpu, const Scene& scene, const WeightFormat& format, int hidden) {
  const Heads& h = scene.heads;
  const int rows = scene.rows();
  Side<Cpu> side(cpu);
  float* const sums = side.floats(rows, h.outputs());
  run(cpu, LinearAdd{.residual = sums,
                     .x = exact_rows(side, format, rows, hidden, 81),
                     .weight = exact_matrix(side, format, h.outputs(), hidden, 82),
                     .rows = rows});
  Numbers y = side.numbers(DType::f32, sums, rows, h.outputs());
  const auto outputs = static_cast<std::size_t>(h.outputs());
  std::vector<float> frequencies(static_cast<std::size_t>(h.head_dim / 2));
  rope_inverse_frequencies(frequencies.data(), h.head_dim, 10000);
  Numbers queries, others;
  for (int r = 0; r < rows; ++r) {  // row r stands at position r
    float* const row = y.data() + static_cast<std::size_t>(r) * outputs;
    for (int o = 0; o < (h.heads + h.kv_heads) * h.head_dim; o += 2) {
      const float angle = static_cast<float>(r) * frequencies[static_cast<std::size_t>(o % h.head_dim / 2)];
      const float even = row[o], odd = row[o + 1];
      row[o] = even * std::cos(angle) - odd * std::sin(angle);
      row[o + 1] = odd * std::cos(angle) + even * std::sin(angle);
    }
    std::uint64_t element = 0;
    for (std::size_t o = 0; o < outputs; ++o) {
      store_element(&element, scene.dtype, 0, row[o]);
      row[o] = load_element(&element, scene.dtype, 0);
    }
    queries.insert(queries.end(), row, row + h.width());
    others.insert(others.end(), row + h.width(), row + h.outputs());
  }
  if (scene.kv == KvFormat::plain) queries.insert(queries.end(), others.begin(), others.end());
  return queries;
}

/// Codes of 8-bit KV are judged by attention's checks, which read them.
void add_projection(Checks& checks, const WeightFormat& format, const Heads& heads, int hidden, int tokens,
                    KvFormat kv = KvFormat::plain) {
  const Scene scene{format.activations, kv, heads, {{0, tokens}}, 0};
  const cuda::LinearShape shape{.ending = cuda::Ending::qkv,
                                .format = format,
                                .outputs = heads.outputs(),
                                .inputs = hidden,
                                .rows = tokens,
                                .head_dim = heads.head_dim,
                                .kv = format.activations};
  const Bound bound{rounded_once(format.activations).relative, std::max(sums(format).of_largest, 1e-4)};
  checks.push_back(
      {"QkvRopeKvWrite",
       to_string(shape) + (kv == KvFormat::plain ? "" : std::string(", ") + to_string(kv) + " KV"),
       {},
       way_of_product(shape),
       [=](Cpu& cpu, Cuda& cuda) {
         Side<Cuda> side(cuda);
         Cache cache(side, scene);
         Numbers got = cache.project(scene.pieces, format, hidden);
         if (kv == KvFormat::plain) {
           const Numbers others = keys_and_values(cache, side, tokens);
           got.insert(got.end(), others.begin(), others.end());
         }
         return compare(got, projected_on_host(cpu, scene, format, hidden), bound);
       }});
}

}  // namespace

void add_attention_checks(Checks& checks) {
  const WeightFormat int8(WeightKind::int8, DType::bf16), int4(WeightKind::int4, DType::bf16, 64),
      fp8(WeightKind::fp8, DType::bf16);
  for (const WeightFormat& format : {WeightFormat(DType::bf16), WeightFormat(DType::f16), int8, int4, fp8}) {
    for (const int tokens : {4, 24, 300}) add_projection(checks, format, kErnie, 1024, tokens);
  }
  add_projection(checks, DType::f32, kDemo, 576, 5);
  add_projection(checks, DType::bf16, kDemo, 576, 5);
  add_projection(checks, DType::bf16, kErnie, 1024, 40, KvFormat::int8);
  add_projection(checks, DType::bf16, kErnie, 1024, 40, KvFormat::fp8);

  const std::vector<Piece> decodes{{4, 1}, {699, 1}, {128, 1}}, few{{10, 3}, {300, 3}, {63, 3}},
      prompts{{0, 200}, {100, 130}};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    add_attention(checks, {dtype, KvFormat::plain, kErnie, decodes, 0});
    add_attention(checks, {dtype, KvFormat::plain, kErnie, few, 3});
    add_attention(checks, {dtype, KvFormat::plain, kErnie, prompts, 0});
  }
  for (const std::vector<Piece>& pieces : {decodes, prompts}) {
    add_attention(checks, {DType::bf16, KvFormat::plain, kDemo, pieces, 0});
    add_attention(checks, {DType::bf16, KvFormat::plain, kOdd, pieces, 0});
    add_attention(checks, {DType::f32, KvFormat::plain, kDemo, pieces, 0});
  }
  for (const KvFormat kv : {KvFormat::int8, KvFormat::fp8}) {
    add_attention(checks, {DType::bf16, kv, kErnie, decodes, 0});
    add_attention(checks, {DType::bf16, kv, kErnie, few, 3});
    add_attention(checks, {DType::bf16, kv, kErnie, prompts, 0});
  }
}

}  // namespace troupe::kernels::check
