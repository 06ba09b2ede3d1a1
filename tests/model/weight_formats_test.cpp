// Which format each weight gets, and what that makes of layouts, bytes and bounds.
#include "model/weight_formats.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/gpu_traits.h"
#include "model/roofline.h"
#include "model/step_choices.h"
#include "model/support/shapes.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

using config::QuantizationOptions;
using kernels::WeightFormat, kernels::WeightKind;
using test::large_mixture, test::small_ernie;

constexpr WeightFormat kInt8{WeightKind::int8, DType::bf16};

WeightFormat int4(int group) { return {WeightKind::int4, DType::bf16, group}; }

WeightFormats chosen(const ModelSpec& spec, const QuantizationOptions& options) {
  const auto made = choose_formats(spec, DType::bf16, config::Device::cpu, options);
  EXPECT_TRUE(made.ok()) << made.status().message;
  return made.ok() ? *made : WeightFormats{};
}

TEST(WeightFormats, WithoutFlagsAllIsInOneType) {
  EXPECT_EQ(chosen(small_ernie(), {}), WeightFormats(DType::bf16));
  EXPECT_FALSE(chosen(large_mixture(), {}).quantised());
}

TEST(WeightFormats, DenseModels) {
  const WeightFormats eight = chosen(small_ernie(), {.method = "wint8"});
  EXPECT_EQ(eight.attention, kInt8);
  EXPECT_EQ(eight.mlp, kInt8);
  EXPECT_EQ(eight.embedding, DType::bf16);
  EXPECT_EQ(eight.lm_head, DType::bf16);
  const WeightFormats four = chosen(small_ernie(), {.method = "wint4"});
  EXPECT_EQ(four.attention, int4(64));
  EXPECT_EQ(four.mlp, int4(64));
  EXPECT_EQ(chosen(small_ernie(), {.method = "wint4", .group = 128}).mlp, int4(128));
}

TEST(WeightFormats, Mixtures) {
  const WeightFormats four = chosen(large_mixture(), {.method = "wint4"});
  EXPECT_EQ(four.attention, kInt8);
  EXPECT_EQ(four.mlp, kInt8);
  EXPECT_EQ(four.experts, int4(0)) << "one scale for each output";
  EXPECT_EQ(four.lm_head, DType::bf16);
  EXPECT_EQ(chosen(large_mixture(), {.method = "wint4", .group = 32}).experts, int4(32));
  const WeightFormats mixed = chosen(
      large_mixture(),
      {.method = R"({"quantization":"mix_quant","dense_quant_type":"wint4","moe_quant_type":"wint8"})"});
  EXPECT_EQ(mixed.attention, int4(64));
  EXPECT_EQ(mixed.experts, kInt8);
  EXPECT_EQ(to_string(four, large_mixture()), "int8, experts int4; activations bfloat16");
}

TEST(WeightFormats, TheHead) {
  EXPECT_EQ(chosen(small_ernie(), {.lm_head = config::LmHeadDType::int8}).lm_head, kInt8);
  EXPECT_EQ(chosen(small_ernie(), {.lm_head = config::LmHeadDType::int4}).lm_head, int4(64));
  EXPECT_EQ(chosen(small_ernie(), {.group = 32, .lm_head = config::LmHeadDType::int4}).lm_head, int4(32));
  EXPECT_EQ(chosen(small_ernie(), {.lm_head = config::LmHeadDType::int8}).attention, DType::bf16);
}

void expect_refused(const Status& status, std::initializer_list<const char*> parts) {
  EXPECT_EQ(status.code, Code::unsupported);
  for (const char* part : parts) EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  EXPECT_EQ(status.message.find('\n'), std::string::npos);
}

TEST(WeightFormats, WhatADeviceLacksIsRefusedWithWhatWorks) {
  const QuantizationOptions fp8{.method = "block_wise_fp8"};
  const auto on_cpu = choose_formats(small_ernie(), DType::bf16, config::Device::cpu, fp8);
  ASSERT_FALSE(on_cpu.ok());
  expect_refused(on_cpu.status(), {"--quantization block_wise_fp8", "wint8", "wint4"});
  const auto made = choose_formats(large_mixture(), DType::bf16, config::Device::cuda, fp8);
  ASSERT_TRUE(made.ok()) << made.status().message;
  EXPECT_EQ(made->attention.kind, WeightKind::fp8);
  EXPECT_EQ(made->experts.kind, WeightKind::fp8);
  EXPECT_EQ(made->lm_head, DType::bf16);
  EXPECT_TRUE(check_gpu(*made, 89).ok());
  EXPECT_TRUE(check_gpu(*made, 90).ok());
  EXPECT_TRUE(check_gpu(*made, 100).ok());
  expect_refused(check_gpu(*made, 86),
                 {"--quantization block_wise_fp8", "this one has 8.6", "wint8", "wint4"});
  EXPECT_TRUE(check_gpu(DType::bf16, 80).ok());
}

// Rows of q, k and v share scales in eights.
TEST(WeightFormats, Fp8NeedsHeadsThatBeginWithTheirOwnScales) {
  ModelSpec spec = small_ernie();
  spec.head_dim = 66;
  const auto made = choose_formats(spec, DType::bf16, config::Device::cuda, {.method = "block_wise_fp8"});
  ASSERT_FALSE(made.ok());
  expect_refused(made.status(), {"multiples of 8", "wint8"});
}

TEST(WeightFormats, ATiedHeadOfAnotherFormatIsAMatrixOfItsOwn) {
  const ModelSpec spec = small_ernie();
  std::vector<std::byte> memory(1 << 12);
  const View view{memory.data(), std::size_t{1} << 40};  // addresses alone are looked at
  const WeightLayout same = WeightLayout::make(spec, DType::bf16, true, view);
  EXPECT_EQ(same.lm_head.data, same.embedding.data);
  const WeightFormats formats = chosen(spec, {.lm_head = config::LmHeadDType::int8});
  const WeightLayout copied = WeightLayout::make(spec, formats, true, view);
  EXPECT_NE(copied.lm_head.data, copied.embedding.data);
  EXPECT_TRUE(copied.head_copies_embedding(true));
  EXPECT_FALSE(same.head_copies_embedding(true));
  EXPECT_EQ(copied.bytes - same.bytes, kernels::matrix_bytes(kInt8, spec.vocab, spec.hidden));
}

// Counted by hand: bytes of a row's codes and scale × rows.
TEST(WeightFormats, BytesOfTheSmallModel) {
  const std::uint64_t linears = 18 * (std::uint64_t{2560} * 1024 + 1024 * 2048 + 6144 * 1024 + 1024 * 3072);
  const std::uint64_t outputs = 18 * (2560 + 1024 + 6144 + 1024);
  const std::uint64_t rest = std::uint64_t{103424} * 1024 * 2 + 37 * 1024 * 4;
  const auto bytes = [](const WeightFormats& f) {
    return WeightLayout::make(small_ernie(), f, true, {}).bytes;
  };
  EXPECT_EQ(bytes(DType::bf16), 2 * linears + rest);
  EXPECT_EQ(bytes(chosen(small_ernie(), {.method = "wint8"})), linears + 4 * outputs + rest);
  EXPECT_EQ(bytes(chosen(small_ernie(), {.method = "wint4"})), linears / 2 + 2 * linears / 64 + rest);
  const auto fp8 =
      choose_formats(small_ernie(), DType::bf16, config::Device::cuda, {.method = "block_wise_fp8"});
  ASSERT_TRUE(fp8.ok()) << fp8.status().message;
  EXPECT_EQ(bytes(*fp8), linears + 4 * linears / 1024 + rest);  // a scale for 8 outputs × 128 inputs
}

TEST(WeightFormats, TheBoundReadsCodesAndScales) {
  const ModelSpec spec = small_ernie();
  const double linears = 18 * (2560.0 * 1024 + 1024 * 2048 + 6144 * 1024 + 1024 * 3072);
  const double head = 103424.0 * 1024 * 2;
  EXPECT_NEAR(decode_work(spec, chosen(spec, {.method = "wint8"}), 1, 0).weight_bytes,
              linears + 4.0 * 18 * (2560 + 1024 + 6144 + 1024) + head, 1);
  EXPECT_NEAR(decode_work(spec, chosen(spec, {.method = "wint4"}), 1, 0).weight_bytes,
              linears * (0.5 + 2.0 / 64) + head, 1);
  EXPECT_NEAR(decode_work(spec, chosen(spec, {.method = "wint4"}), 1, 0).flops,
              decode_work(spec, DType::bf16, 1, 0).flops, 1);
  const WeightFormats kv = chosen(spec, {.kv_cache = config::KvCacheDType::int8});
  EXPECT_EQ(kv_bytes_per_token(spec, kv), 18 * 2 * 2 * (128 + 4));
  EXPECT_EQ(kv_shape(spec, kv).block_bytes(), 64u * 18 * 2 * 2 * (128 + 4));
}

TEST(WeightFormats, SizesAreListedWithTheOneInUse) {
  const ModelSpec spec = large_mixture();
  const QuantizationOptions options{.method = "wint4"};
  const auto sizes = format_sizes(spec, chosen(spec, options), true, config::Device::cpu, options);
  ASSERT_EQ(sizes.size(), 4u);
  EXPECT_EQ(sizes[3].name, "wint2");
  EXPECT_EQ(sizes[0].name, "bfloat16");
  EXPECT_EQ(sizes[1].name, "wint8");
  EXPECT_EQ(sizes[2].name, "wint4");
  EXPECT_FALSE(sizes[0].in_use || sizes[1].in_use);
  EXPECT_TRUE(sizes[2].in_use);
  EXPECT_GT(sizes[0].weight_bytes, sizes[1].weight_bytes);
  const auto on_hopper = format_sizes(spec, chosen(spec, options), true, config::Device::cuda, options, 90);
  ASSERT_EQ(on_hopper.size(), 5u);
  EXPECT_EQ(on_hopper[1].name, "block_wise_fp8");
  EXPECT_EQ(on_hopper[4].name, "wint2");
  EXPECT_EQ(format_sizes(spec, chosen(spec, options), true, config::Device::cuda, options, 86).size(), 4u);
  const QuantizationOptions mixed{
      .method = R"({"quantization":"mix_quant","dense_quant_type":"wint4","moe_quant_type":"wint4"})"};
  const auto more = format_sizes(spec, chosen(spec, mixed), true, config::Device::cpu, mixed);
  ASSERT_EQ(more.size(), 5u);
  EXPECT_TRUE(more[3].in_use) << "smaller than wint4, larger than wint2";
}

TEST(WeightFormats, StorageThatDiffersHashesDifferently) {
  config::Options plain, eight, group, head, cache;
  eight.quantization.method = "wint8";
  group.quantization.group = 64;
  head.quantization.lm_head = config::LmHeadDType::int8;
  cache.quantization.kv_cache = config::KvCacheDType::fp8;
  std::set<std::uint64_t> hashes;
  for (const config::Options* o : {&plain, &eight, &group, &head, &cache})
    hashes.insert(storage_hash(small_ernie(), *o));
  EXPECT_EQ(hashes.size(), 5u);
  EXPECT_EQ(storage_hash(small_ernie(), plain), storage_hash(small_ernie(), config::Options{}));
}

TEST(WeightFormats, ExplainNamesThem) {
  const ModelSpec spec = large_mixture();
  for (const StepChoice& c :
       decode_choices(spec, chosen(spec, {.method = "wint4"}), 8, kernels::cuda::kH200)) {
    if (c.op == "qkv") {
      EXPECT_NE(c.shape.find("int8"), std::string::npos) << c.shape;
    }
    if (c.op == "experts down") {
      EXPECT_NE(c.shape.find("int4"), std::string::npos) << c.shape;
    }
    if (c.op == "lm_head") {
      EXPECT_NE(c.shape.find("bfloat16"), std::string::npos) << c.shape;
    }
  }
}

}  // namespace
}  // namespace troupe::model
