// Which way each op runs: the choosers' borders, and what they print.
#include <gtest/gtest.h>

#include "kernels/cuda/attention/choose.h"
#include "kernels/cuda/attention/working_memory.h"
#include "kernels/cuda/moe/choose.h"
#include "kernels/cuda/product/choose.h"
#include "kernels/cuda/sample/choose.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::ampere, test::grouped, test::invariant, test::product;

LinearWay way(const LinearShape& shape, const GpuTraits& gpu = kH200) { return choose(shape, gpu).way; }

LinearShape in(DType dtype, LinearShape shape) {
  shape.format = shape.kv = dtype;
  return shape;
}

TEST(ChooseLinear, ByRows) {
  const auto o = [](int rows) { return product(Ending::add, 2560, 2560, rows); };
  EXPECT_EQ(way(o(1)), LinearWay::strips);
  EXPECT_EQ(way(o(8)), LinearWay::strips);
  EXPECT_EQ(way(o(9)), LinearWay::stream);
  EXPECT_EQ(way(o(32)), LinearWay::stream);
  EXPECT_EQ(way(o(33)), LinearWay::wgmma);
  EXPECT_EQ(way(o(8192)), LinearWay::wgmma);
}

TEST(ChooseLinear, ByTheRowsOfAnAverageGroup) {
  const auto gate_up = [](int rows) { return grouped(Ending::swiglu, 3072, 2560, rows, 66); };
  EXPECT_EQ(way(gate_up(8)), LinearWay::stream);
  EXPECT_EQ(way(gate_up(12 * 66)), LinearWay::stream);
  EXPECT_EQ(way(gate_up(12 * 66 + 1)), LinearWay::wgmma);
  EXPECT_EQ(choose(gate_up(66), kH200).stream.tile_rows, 8);
  EXPECT_EQ(choose(gate_up(2 * 66), kH200).stream.tile_rows, 16);
  EXPECT_EQ(choose(gate_up(66), kH200).stream.cluster, 1) << "groups share no inputs";
}

TEST(ChooseLinear, ByTypeAndShape) {
  for (const int rows : {1, 8, 64}) {
    EXPECT_EQ(way(in(DType::f32, product(Ending::add, 2560, 2560, rows))), LinearWay::generic);
    LinearShape odd = product(Ending::qkv, 300, 64, rows);
    odd.head_dim = 6;
    EXPECT_EQ(way(odd), LinearWay::generic);
    odd.head_dim = 40;
    EXPECT_NE(way(odd), LinearWay::generic);
  }
  EXPECT_EQ(way(in(DType::f16, product(Ending::add, 2560, 2560, 8))), LinearWay::stream) << "strips are bf16";
  EXPECT_EQ(way(in(DType::f16, product(Ending::add, 2560, 2560, 64))), LinearWay::wgmma);
  LinearShape qkv = product(Ending::qkv, 3072, 2048, 64);
  EXPECT_EQ(way(qkv), LinearWay::wgmma);
  qkv.head_dim = 96;
  EXPECT_EQ(way(qkv), LinearWay::stream) << "wgmma writes whole swizzled halves of heads";
}

TEST(ChooseLinear, ByGpu) {
  for (const int rows : {1, 8, 64, 8192})
    EXPECT_EQ(way(product(Ending::add, 2560, 2560, rows), ampere()), LinearWay::stream) << rows;
  EXPECT_EQ(choose(product(Ending::add, 2560, 2560, 8), ampere()).stream.cluster, 1) << "no clusters there";
  StreamPlan first;
  for (const int rows : {1, 8, 64, 8192}) {
    const LinearChoice choice = choose(product(Ending::add, 2560, 2560, rows), invariant());
    EXPECT_EQ(choice.way, LinearWay::stream);
    if (rows == 1) first = choice.stream;
    EXPECT_EQ(choice.stream.tile_rows, first.tile_rows);
    EXPECT_EQ(choice.stream.cluster, first.cluster);
    EXPECT_EQ(choice.stream.boxes, first.boxes);
    EXPECT_EQ(choice.stream.stages, first.stages);
  }
}

TEST(ChooseLinear, Fp8StreamsAFewRowsAndTakesWgmmaForMany) {
  LinearShape s = product(Ending::add, 2560, 2560, 8);
  s.format = {WeightKind::fp8, DType::bf16};
  EXPECT_EQ(way(s), LinearWay::stream);
  EXPECT_EQ(way(s, ampere()), LinearWay::generic);
  s.rows = 512;
  const LinearChoice many = choose(s, kH200);
  ASSERT_EQ(many.way, LinearWay::wgmma);
  EXPECT_TRUE(kWgmmaTiles[many.wgmma_tile].fp8);
  GpuTraits invariant = kH200;
  invariant.batch_invariant = true;
  EXPECT_EQ(way(s, invariant), LinearWay::stream);
  EXPECT_EQ(way(s, ampere()), LinearWay::generic);
  GpuTraits ada = ampere();
  ada.features.fp8 = true;
  ada.block_shared_bytes = 99 << 10;
  const LinearChoice tiles = choose(s, ada);
  ASSERT_EQ(tiles.way, LinearWay::stream);
  EXPECT_TRUE(tiles.stream.many_rows);
  EXPECT_EQ(tiles.stream.tile_rows, 64);
  EXPECT_EQ(tiles.stream.stages, 2);
  EXPECT_LE(2 * (tiles.stream.shared_bytes + 1024), 100 << 10) << "two blocks on a multiprocessor";
  s.rows = 48;
  EXPECT_FALSE(choose(s, ada).stream.many_rows) << "tiles would not be filled";
  s.format.activations = DType::f16;
  EXPECT_EQ(way(s), LinearWay::generic);
  EXPECT_FALSE(kWgmmaTiles[wgmma_plan(product(Ending::add, 2560, 2560, 512), kH200)].fp8);
}

TEST(ChooseLinear, Fp8RunsAtEveryRowCountButHalvesNoNorm) {
  for (const DType activations : {DType::bf16, DType::f16, DType::f32}) {
    LinearShape s = product(Ending::add, 2560, 2560, 8);
    s.format = {WeightKind::fp8, activations};
    for (const int rows : {1, 8, 64}) {
      s.rows = rows;
      EXPECT_NE(way(s), LinearWay::unsupported) << rows;
    }
    s.produces_halved_norm = true;
    EXPECT_EQ(way(s), LinearWay::unsupported);
  }
}

TEST(ChooseLinear, CodesRunTheSameWays) {
  const WeightFormat int8(WeightKind::int8, DType::bf16), int4(WeightKind::int4, DType::bf16),
      grouped(WeightKind::int4, DType::bf16, 64);
  LinearShape s = product(Ending::add, 1024, 3072, 8);  // down of the 0.3B
  s.produces_halved_norm = true;
  for (const WeightFormat& format : {int8, grouped}) {
    s.format = format;
    EXPECT_EQ(way(s), LinearWay::strips) << to_string(format);
  }
  s.format = int4;
  EXPECT_EQ(way(s), LinearWay::unsupported) << "dense weights of 4 bits have groups";
  s.produces_halved_norm = false;
  EXPECT_EQ(way(s), LinearWay::stream);

  LinearShape experts = product(Ending::swiglu, 3072, 2560, 0);  // gate_up of the 21B
  experts.groups = 66;
  for (const WeightFormat& format : {int8, int4}) {
    experts.format = format;
    experts.rows = 8;
    const LinearChoice few = choose(experts, kH200);
    EXPECT_EQ(few.way, LinearWay::stream) << to_string(format);
    EXPECT_LE(3 * few.stream.shared_bytes, kH200.block_shared_bytes) << "three blocks on a multiprocessor";
    experts.rows = 256 * 8;
    EXPECT_EQ(way(experts), LinearWay::stream) << "codes are not expanded for a few rows";
    experts.rows = 2048 * 8;
    EXPECT_EQ(way(experts), LinearWay::unpacked) << to_string(format);
    EXPECT_EQ(way(experts, ampere()), LinearWay::stream);
    EXPECT_EQ(way(experts, invariant()), LinearWay::stream);
    LinearShape dense = product(Ending::add, 2560, 2560, 1024);
    dense.format = format;
    const LinearChoice many = choose(dense, kH200);
    ASSERT_EQ(many.way, LinearWay::expanded) << to_string(format);
    EXPECT_TRUE(kWgmmaTiles[many.wgmma_tile].scaled) << "a tile that is compiled for scales of outputs";
  }
}

TEST(ChooseLinear, ExpertsOfCodesTakeWideBlocksIfTheyAreEnough) {
  LinearShape s = grouped(Ending::swiglu, 3584, 8192, 8, 64);  // half of the 300B's, one row
  s.format = {WeightKind::int4, DType::bf16};
  const auto outputs = [&] { return choose(s, kH200).stream.outputs; };
  EXPECT_EQ(outputs(), streaming::kWideOutputs) << "8 experts × 28 tiles";
  s.outputs = 896;  // an eighth
  EXPECT_EQ(outputs(), streaming::kOutputs) << "8 experts × 7 tiles leave multiprocessors without work";
  for (const int rows : {64 * 8, 64 * 16, 64 * 32}) {
    s.rows = rows;
    EXPECT_EQ(outputs(), streaming::kWideOutputs) << rows;
    EXPECT_LE(3 * (choose(s, kH200).stream.shared_bytes + 1024), 228 * 1024)
        << "three blocks on a multiprocessor";
  }
  s.format = DType::bf16;
  EXPECT_EQ(outputs(), streaming::kOutputs);
}

TEST(ChooseLinear, CodesThatNoTensorCoreTakes) {
  LinearShape s = product(Ending::add, 2560, 576, 8);
  s.format = {WeightKind::int8, DType::bf16};
  EXPECT_EQ(way(s), LinearWay::stream);
  s.format = {WeightKind::int4, DType::bf16};
  EXPECT_EQ(way(s), LinearWay::stream) << "576 inputs are four pieces of 128 and a half";
  s.format = {WeightKind::int4, DType::f16};
  EXPECT_EQ(way(s), LinearWay::generic) << "codes are expanded to bfloat16";
  s.format = {WeightKind::int8, DType::f32};
  EXPECT_EQ(way(s), LinearWay::generic);
}

TEST(ChooseLinear, HalvedNormsTakeStrips) {
  LinearShape s = product(Ending::add, 2560, 12288, 1);
  EXPECT_EQ(way(s), LinearWay::stream) << "too large for strips";
  s.produces_halved_norm = true;
  EXPECT_EQ(way(s), LinearWay::unsupported);
}

TEST(ChooseLinear, AStreamFitsSharedMemory) {
  for (const GpuTraits& gpu : {kH200, ampere(), invariant()}) {
    for (const int inputs : {32, 64, 576, 1536, 2560, 8192, 28672}) {
      for (const int outputs : {32, 1000, 2560, 103424}) {
        for (const int rows : {1, 8, 9, 17, 33, 300}) {
          for (const int groups : {0, 3, 64}) {
            const StreamPlan p = stream_plan(grouped(Ending::add, outputs, inputs, rows, groups), gpu);
            ASSERT_LE(p.shared_bytes, gpu.block_shared_bytes) << outputs << "x" << inputs << " " << rows;
            ASSERT_GE(p.stages, 1);
            ASSERT_GE(p.boxes * p.stages, 1);
            ASSERT_LE(p.boxes, p.block_boxes);
            ASSERT_GE(p.block_boxes * p.cluster * streaming::kBox, inputs);
          }
        }
      }
    }
  }
}

TEST(ChooseLinear, TheWgmmaTileCanDoTheProduct) {
  for (const Ending ending : {Ending::add, Ending::swiglu, Ending::store_f32, Ending::store_scaled}) {
    for (const int inputs : {64, 576, 2560, 8192}) {
      for (const int outputs : {64, 1000, 2560, 103424}) {
        for (const int rows : {33, 128, 1000, 8192}) {
          for (const int groups : {0, 64}) {
            const int tile = wgmma_plan(grouped(ending, outputs, inputs, rows, groups), kH200);
            ASSERT_GE(tile, 0);
            ASSERT_TRUE(groups == 0 || kWgmmaTiles[tile].cluster == 1);
          }
        }
      }
    }
  }
  EXPECT_EQ(wgmma_plan(in(DType::f16, product(Ending::add, 2560, 2560, 64)), kH200), kWgmmaF16Tile);
}

TEST(ChooseLinear, Prints) {
  EXPECT_EQ(
      to_string(choose(product(Ending::add, 2560, 2560, 8), kH200)),
      "strips: 132 blocks of 40 outputs, clusters of 2, copy interval 53 cycles per KiB (few rows, and its "
      "weights nearly fit shared memory)");
  EXPECT_EQ(
      to_string(choose(product(Ending::swiglu, 6144, 1024, 33), kH200)),
      "slabs: 132 blocks, clusters of 2 with 96 outputs, copy interval 53 cycles per KiB (9 to 64 rows, "
      "and its weights nearly fit shared memory)");
  EXPECT_EQ(to_string(product(Ending::add, 2560, 2560, 1)), "2560 × 2560 bfloat16, 1 row");
  EXPECT_EQ(to_string(grouped(Ending::swiglu, 3072, 2560, 8, 66)), "66 × 3072 × 2560 bfloat16, 8 rows");
}

DenseTailShape tail(int rows) {  // of the 0.3B
  return {.attention_out = product(Ending::add, 1024, 2048, rows),
          .gate_up = product(Ending::swiglu, 6144, 1024, rows),
          .down = product(Ending::add, 1024, 3072, rows),
          .next = product(Ending::qkv, 2560, 1024, rows),
          .has_next = true};
}

TEST(ChooseDenseTail, NormsInHalvesUpTo64Rows) {
  const DenseTailChoice choice = choose(tail(8), kH200);
  ASSERT_TRUE(choice.halved_norms);
  ASSERT_EQ(choice.count, 4);
  EXPECT_FALSE(choice.products[0].strips.kernel.consumes_halved_norm);
  EXPECT_TRUE(choice.products[1].strips.kernel.consumes_halved_norm);
  EXPECT_TRUE(choice.products[3].strips.kernel.consumes_halved_norm);
  for (const int rows : {9, 40, 64}) {
    const DenseTailChoice more = choose(tail(rows), kH200);
    ASSERT_TRUE(more.halved_norms) << rows;
    for (const LinearChoice& product : more.products) EXPECT_EQ(product.way, LinearWay::slabs);
    EXPECT_FALSE(choose(tail(rows), invariant()).halved_norms);
  }
  EXPECT_FALSE(choose(tail(65), kH200).halved_norms);
  EXPECT_FALSE(choose(tail(8), ampere()).halved_norms);
  EXPECT_FALSE(choose(tail(8), invariant()).halved_norms);
  DenseTailShape last = tail(8);
  last.has_next = false;
  EXPECT_TRUE(choose(last, kH200).halved_norms);
  EXPECT_EQ(choose(last, kH200).count, 3);
  DenseTailShape other = tail(8);
  other.plain_norms = false;
  EXPECT_FALSE(choose(other, kH200).halved_norms);
}

AttentionShape attention(int group, int head_dim, int rows, int sequences) {
  return {.heads = 2 * group, .kv_heads = 2, .head_dim = head_dim, .rows = rows, .sequences = sequences};
}

struct Ways {
  AttentionWay decodes, pieces;
  bool operator==(const Ways&) const = default;
};
void PrintTo(const Ways& w, std::ostream* out) { *out << to_string(w.decodes) << "/" << to_string(w.pieces); }

Ways ways(const AttentionShape& shape, const GpuTraits& gpu = kH200) {
  const AttentionChoice choice = choose(shape, gpu);
  return {choice.decodes, choice.pieces};
}

constexpr auto kNone = AttentionWay::none, kDecode = AttentionWay::decode, kFew = AttentionWay::few,
               kFlash = AttentionWay::flash, kGeneric = AttentionWay::generic;

TEST(ChooseAttention, EachPartByTheBestWayThatTakesIt) {
  for (const int head_dim : {64, 128}) {
    EXPECT_EQ(ways(attention(8, head_dim, 4, 4)), (Ways{kDecode, kNone}));
    EXPECT_EQ(ways(attention(8, head_dim, 4, 6)), (Ways{kDecode, kNone})) << "padding sequences";
    EXPECT_EQ(ways(attention(8, head_dim, 40, 4)), (Ways{kDecode, kFlash}));
    EXPECT_EQ(ways(attention(8, head_dim, 40, 1)), (Ways{kNone, kFlash})) << "a prompt alone";
    EXPECT_EQ(ways(attention(12, head_dim, 4, 4)), (Ways{kGeneric, kNone}));
    EXPECT_EQ(ways(attention(12, head_dim, 40, 4)), (Ways{kGeneric, kFlash}));
    EXPECT_EQ(ways(attention(12, head_dim, 40, 1)), (Ways{kNone, kFlash}));
  }
  for (const int head_dim : {48, 96, 256}) {
    EXPECT_EQ(ways(attention(4, head_dim, 4, 4)), (Ways{kGeneric, kNone}));
    EXPECT_EQ(ways(attention(4, head_dim, 40, 4)), (Ways{kGeneric, kGeneric}));
  }
  AttentionShape f32 = attention(4, 128, 40, 4);
  f32.dtype = DType::f32;
  EXPECT_EQ(ways(f32), (Ways{kGeneric, kGeneric}));
  EXPECT_EQ(ways(attention(4, 128, 40, 4), ampere()), (Ways{kDecode, kFlash}));
}

TEST(ChooseAttention, EightBitKv) {
  for (const KvFormat format : {KvFormat::int8, KvFormat::fp8}) {
    AttentionShape s = attention(8, 128, 40, 4);
    s.kv = format;
    EXPECT_EQ(ways(s), (Ways{kDecode, kFlash}));
    EXPECT_EQ(ways(s, invariant()), (Ways{kDecode, kDecode}));
    EXPECT_EQ(ways(s, ampere()), (Ways{kDecode, kFlash}));
    s.dtype = DType::f16;
    EXPECT_EQ(ways(s), (Ways{kGeneric, kGeneric})) << "codes become bfloat16 in the tensor core kernels";
  }
  AttentionShape s = attention(8, 128, 40, 4);
  s.kv = KvFormat::fp8;
  EXPECT_EQ(to_string(s), "16 heads, 2 KV heads of 128 bfloat16, fp8 KV, 40 rows of 4 sequences");
}

TEST(ChooseAttention, BatchInvariantRowsGoOneByOne) {
  for (const int sequences : {1, 4, 40}) {
    EXPECT_EQ(ways(attention(8, 128, 40, sequences), invariant()), (Ways{kDecode, kDecode}));
    EXPECT_TRUE(choose(attention(8, 128, 40, sequences), invariant()).one_launch());
    EXPECT_EQ(ways(attention(12, 128, 40, sequences), invariant()), (Ways{kGeneric, kGeneric}));
  }
}

TEST(ChooseAttention, AFewTokensOfEverySequenceGoTogether) {
  const auto of = [](int group, int most_tokens, int sequences = 4, int head_dim = 128) {
    AttentionShape s = attention(group, head_dim, sequences * most_tokens, sequences);
    s.most_tokens = most_tokens;
    return s;
  };
  for (const int head_dim : {64, 128}) {
    for (const int sequences : {1, 4, 256}) {
      for (int tokens = 2; tokens <= kMostVerified; ++tokens) {
        EXPECT_EQ(ways(of(8, tokens, sequences, head_dim)), (Ways{kFew, kFew}));
        EXPECT_EQ(ways(of(1, tokens, sequences, head_dim)), (Ways{kFew, kFew}));
        EXPECT_EQ(ways(of(8, tokens, sequences, head_dim), invariant()), (Ways{kDecode, kDecode}))
            << "each row by itself";
      }
    }
  }
  EXPECT_TRUE(choose(of(5, 2), kH200).one_launch());
  EXPECT_EQ(ways(of(8, 1)), (Ways{kDecode, kNone}));
  // Sequences with one token are not for flash, and a batch of one with a padding row may be such a sequence.
  for (const int sequences : {1, 4}) {
    EXPECT_EQ(ways(of(8, kMostVerified + 1, sequences)), (Ways{kDecode, kFlash}));
    EXPECT_EQ(ways(of(9, 2, sequences)), (Ways{kGeneric, kFlash}));
  }
  EXPECT_EQ(ways(of(8, 2, 4, 96)), (Ways{kGeneric, kGeneric}));
  EXPECT_EQ(ways(of(8, 2), ampere()), (Ways{kDecode, kFlash})) << "no room for the kernels of a few tokens";
  AttentionShape codes = of(8, 2);
  codes.kv = KvFormat::int8;
  EXPECT_EQ(ways(codes), (Ways{kFew, kFew}));
  codes.dtype = DType::f16;
  EXPECT_EQ(ways(codes), (Ways{kGeneric, kGeneric}));
  EXPECT_EQ(to_string(choose(of(8, 2), kH200)), "few (a few tokens each)");
}

TEST(ChooseAttention, TheSmallestDecodeKernelThatHasTheColumns) {
  const auto grid = [](DecodeRows rows, int group, int most_tokens, int sequences, int first = 0,
                       const GpuTraits& gpu = kH200) {
    const Attention op{
        .kv = {.kv_heads = 2, .head_dim = 128},
        .heads = 2 * group,
        .batch = {.count = sequences, .rows = sequences * most_tokens, .most_tokens = most_tokens},
        .first = first};
    const DecodeGrid made = decode_grid(rows, op, gpu);
    EXPECT_EQ(decode_partial_bytes(made, 128), std::size_t(2 * made.blocks * made.columns * (128 + 2) * 4));
    return made;
  };
  for (int group = 1; group <= kDecodeGroup; ++group) {
    for (int tokens = 2; tokens <= kMostVerified; ++tokens) {
      for (const int sequences : {1, 8, 9, 200}) {
        const DecodeGrid few = grid(DecodeRows::few, group, tokens, sequences);
        ASSERT_GE(few.few_kernel, 0);
        ASSERT_GT(few.pass_tokens, 0);
        const FewKernel& kernel = kFewKernels[few.few_kernel];
        EXPECT_EQ(few.columns, kernel.columns);
        EXPECT_LE(group * few.pass_tokens, kernel.columns);
        if (few.few_kernel > 0) {
          EXPECT_GT(group * tokens, kFewKernels[few.few_kernel - 1].columns);
          EXPECT_EQ(few.pass_tokens, tokens) << "wide items have all tokens";
        }
        const int passes = (tokens + few.pass_tokens - 1) / few.pass_tokens;
        EXPECT_EQ(few.clusters, sequences * passes <= 8 && few.few_kernel == 0);
        EXPECT_EQ(few.blocks, few.clusters ? 128 : 132 * kernel.blocks_per_multiprocessor);
      }
    }
    EXPECT_EQ(grid(DecodeRows::single, group, 1, 9).few_kernel, -1);
    EXPECT_EQ(grid(DecodeRows::all, group, 5, 9).few_kernel, -1) << "each row by itself";
    for (const DecodeRows rows : {DecodeRows::single, DecodeRows::all})
      EXPECT_EQ(grid(rows, group, 5, 9, 1).few_kernel, 0) << "a first token";
  }
  EXPECT_FALSE(grid(DecodeRows::all, 5, 5, 1, 1).clusters);
  EXPECT_EQ(grid(DecodeRows::single, 5, 1, 9).blocks, 2 * 132);
  GpuTraits small = kH200;
  small.multiprocessors = 7;
  EXPECT_FALSE(grid(DecodeRows::few, 5, 2, 1, 0, small).clusters);
  EXPECT_EQ(grid(DecodeRows::few, 5, 2, 1, 0, small).blocks, 7);
}

// {tokens of a pass, columns of an item}
TEST(ChooseAttention, AFewSequencesGoInPasses) {
  const auto items = [](int group, int kv_heads, int most_tokens, int sequences) {
    const Attention op{
        .kv = {.kv_heads = kv_heads, .head_dim = 128},
        .heads = kv_heads * group,
        .batch = {.count = sequences, .rows = sequences * most_tokens, .most_tokens = most_tokens}};
    const DecodeGrid made = decode_grid(DecodeRows::few, op, kH200);
    return std::pair(made.pass_tokens, made.columns);
  };
  EXPECT_EQ(items(8, 2, 2, 1), std::pair(2, 16)) << "fits";
  EXPECT_EQ(items(5, 4, 3, 256), std::pair(3, 16)) << "fits";
  for (const int sequences : {1, 8, 32}) {
    EXPECT_EQ(items(8, 2, 5, sequences), std::pair(2, 16));
    EXPECT_EQ(items(5, 4, 5, sequences), std::pair(3, 16));
  }
  EXPECT_EQ(items(8, 2, 9, 8), std::pair(2, 16));
  EXPECT_EQ(items(8, 2, 9, 32), std::pair(9, 72));
  EXPECT_EQ(items(8, 2, 5, 64), std::pair(5, 48));
  EXPECT_EQ(items(5, 4, 5, 128), std::pair(5, 32));
}

TEST(ChooseAttention, Prints) {
  EXPECT_EQ(to_string(choose(attention(12, 128, 40, 4), kH200)),
            "generic (more than 8 q heads for each KV head); pieces of prompts: flash (several tokens each)");
  EXPECT_EQ(to_string(choose(attention(8, 128, 4, 4), kH200)), "decode (one token each)");
}

TEST(ChooseRouting, ByRows) {
  const auto way = [](int rows, const GpuTraits& gpu = kH200, DType dtype = DType::bf16, int experts = 64) {
    return choose(RoutingShape{.dtype = dtype, .experts = experts, .rows = rows}, gpu).way;
  };
  EXPECT_EQ(way(1), RoutingWay::clusters_16);
  EXPECT_EQ(way(128), RoutingWay::clusters_16);
  EXPECT_EQ(way(129), RoutingWay::tiles_16);
  EXPECT_EQ(way(257), RoutingWay::tiles_32);
  EXPECT_EQ(way(2049), RoutingWay::tiles_32_wide);
  EXPECT_EQ(way(1, ampere()), RoutingWay::tiles_16);
  EXPECT_EQ(way(1, kH200, DType::bf16, 128), RoutingWay::tiles_16) << "a cluster has eight experts a block";
  EXPECT_EQ(way(5000, invariant()), RoutingWay::tiles_16);
  EXPECT_EQ(way(1, kH200, DType::f16), RoutingWay::generic);
}

TEST(ChooseSampling, ByVocabulary) {
  const auto choice = [](int rows, int vocab, const GpuTraits& gpu = kH200) {
    return choose(SampleShape{.rows = rows, .vocab = vocab}, gpu);
  };
  EXPECT_TRUE(choice(1, 103424).resident);
  EXPECT_EQ(choice(1, 103424).threads, 512);
  EXPECT_EQ(choice(9, 103424).threads, 256);
  EXPECT_FALSE(choice(9, 200003).resident);
  EXPECT_EQ(choice(9, 200003).threads, 512);
  EXPECT_EQ(choice(1, 50257).block_logits % 4, 0);
  EXPECT_GE(8 * choice(1, 50257).block_logits, 50257);
  EXPECT_FALSE(choice(1, 1000, ampere()).resident);
}

}  // namespace
}  // namespace troupe::kernels::cuda
