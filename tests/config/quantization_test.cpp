// --quantization in both of its forms, and what its companions may say.
#include "config/quantization.h"

#include <gtest/gtest.h>

#include "config/parse.h"

namespace troupe::config {
namespace {

using enum WeightQuant;

Quantization read(std::string_view text) {
  const auto read = parse_quantization(text);
  EXPECT_TRUE(read.ok()) << text << ": " << read.status().message;
  return read.ok() ? *read : Quantization{};
}

std::string refused(std::string_view text, Code code = Code::invalid_argument) {
  const auto read = parse_quantization(text);
  EXPECT_FALSE(read.ok()) << text;
  EXPECT_EQ(read.status().code, code) << read.status().message;
  EXPECT_EQ(check_quantization(text).ok(), code == Code::unsupported);
  EXPECT_EQ(unavailable_quantization(text).empty(), code != Code::unsupported);
  return read.status().message;
}

TEST(Quantization, Names) {
  EXPECT_EQ(read(""), Quantization{});
  EXPECT_EQ(read("wint8"), (Quantization{wint8, wint8, wint8}));
  EXPECT_EQ(read("wint4"), (Quantization{wint4, wint8, wint4}))
      << "4 bits outside of experts only without experts";
  EXPECT_EQ(read("block_wise_fp8"), (Quantization{block_wise_fp8, block_wise_fp8, block_wise_fp8}));
  EXPECT_EQ(read("w4a8"), (Quantization{w4a8, wint8, w4a8}));
  EXPECT_EQ(read("w4a8c8"), (Quantization{w4a8, wint8, w4a8, KvCacheDType::int8}));
  EXPECT_NE(refused("wint44").find("did you mean wint4?"), std::string::npos);
  EXPECT_NE(refused("mix_quant").find("dense_quant_type"), std::string::npos);
}

TEST(Quantization, Objects) {
  EXPECT_EQ(read(R"({"quantization": "wint4"})"), read("wint4"));
  EXPECT_EQ(read(R"({"quantization":"mix_quant","dense_quant_type":"wint8","moe_quant_type":"wint4"})"),
            (Quantization{wint8, wint8, wint4}));
  EXPECT_EQ(read(R"({"quantization":"mix_quant","dense_quant_type":"wint4","moe_quant_type":"wint8",
                     "kv_cache_quant_type":"int8"})"),
            (Quantization{wint4, wint4, wint8, KvCacheDType::int8}));
  EXPECT_EQ(read(R"({"quantization":"mix_quant","moe_quant_type":"wint4","image_moe_quant_type":"wint4"})"),
            read(R"({"quantization":"mix_quant","moe_quant_type":"wint4"})"));
  EXPECT_EQ(read(R"({"quantization":"mix_quant","moe_quant_type":"wint4"})"),
            (Quantization{none, none, wint4}));
  const Quantization static_kv = read(
      R"({"quantization":"mix_quant","dense_quant_type":"wint8","moe_quant_type":"w4a8","kv_cache_quant_type":"int8"})");
  EXPECT_TRUE(static_kv.static_kv());
  EXPECT_TRUE(read("w4a8c8").static_kv());
  EXPECT_TRUE(read(R"({"quantization":"w4a8c8"})").static_kv());
  EXPECT_FALSE(read("w4a8").static_kv());
  EXPECT_FALSE(read(R"({"quantization":"wint4","kv_cache_quant_type":"int8"})").static_kv());
  for (const char* name : {"fp8", "float8_e4m3fn", "block_wise_fp8"}) {
    const std::string text = std::string(R"({"quantization":"wint8","kv_cache_quant_type":")") + name + "\"}";
    EXPECT_EQ(read(text).kv_cache, KvCacheDType::fp8);
  }
}

TEST(Quantization, WrongObjectsAreNamedByKeyAndValue) {
  EXPECT_NE(refused("{").find("JSON object"), std::string::npos);
  EXPECT_NE(refused("{}").find("\"quantization\" is missing"), std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"mix_quant"})").find("dense_quant_type"), std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"wint8","dense_quant_type":"wint4"})").find("mix_quant"),
            std::string::npos);
  EXPECT_NE(refused(R"({"quantization":8})").find("key \"quantization\": got 8"), std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"wint8","kv_quant":"int8"})").find("unknown key \"kv_quant\""),
            std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"wint8","kv_cache_quant_type":"int3"})").find("expected int8 or fp8"),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"quantization":"mix_quant","dense_quant_type":"wint5"})").find("\"dense_quant_type\""),
      std::string::npos);
}

TEST(Quantization, MethodsThatAreMissingAreRefusedWithWhatWorks) {
  for (const char* name : {"wint2.5", "w4afp8", "w8a8", "nvfp4", "tensor_wise_fp8"}) {
    EXPECT_NE(refused(name, Code::unsupported).find(std::string(name) + " is not"), std::string::npos);
    EXPECT_NE(refused(name, Code::unsupported).find("wint8 and wint4 are"), std::string::npos);
  }
  EXPECT_NE(refused(R"({"quantization":"mix_quant","dense_quant_type":"wint8","moe_quant_type":"w4afp8"})",
                    Code::unsupported)
                .find("key \"moe_quant_type\": w4afp8"),
            std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"mix_quant","dense_quant_type":"w4a8"})").find("experts alone have"),
            std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"mix_quant","moe_quant_type":"wint4","image_moe_quant_type":"wint8"})",
                    Code::unsupported)
                .find("image_moe_quant_type wint8 with moe_quant_type wint4 is not offered"),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"quantization":"mix_quant","moe_quant_type":"wint4","image_moe_quant_type":"w4afp8"})",
              Code::unsupported)
          .find("key \"image_moe_quant_type\": w4afp8"),
      std::string::npos);
  EXPECT_NE(refused(R"({"quantization":"wint8","kv_cache_quant_type":"int4_zp"})", Code::unsupported)
                .find("int8 and fp8 are"),
            std::string::npos);
}

std::string parse_error(const std::vector<std::string>& words) {
  const auto result = parse(words, {});
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(exit_code(result.status()), 2) << result.status().message;
  return result.status().message;
}

TEST(Quantization, CompanionsFitEachOther) {
  EXPECT_EQ(parse_error({"--quantization", R"({"quantization":"wint8","kv_cache_quant_type":"fp8"})",
                         "--kv-cache-dtype", "int8"}),
            "--kv-cache-dtype: got int8, but kv_cache_quant_type in --quantization says fp8");
  EXPECT_NE(
      parse_error({"--quantization", "wint8", "--quantization-group", "64"}).find("needs 4-bit weights"),
      std::string::npos);
  EXPECT_EQ(parse_error({"--quantization", "wint4", "--quantization-group", "16"}),
            "--quantization-group: got \"16\", expected 32, 64 or 128");
  EXPECT_NE(parse_error({"--lm-head-dtype", "fp8"}).find("int8 or int4"), std::string::npos);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--quantization", "wint4", "--quantization-group", "32"},
           {"--lm-head-dtype", "int4", "--quantization-group", "32"},
           {"--quantization={\"quantization\":\"wint8\",\"kv_cache_quant_type\":\"int8\"}",
            "--kv-cache-dtype", "int8"}}) {
    EXPECT_TRUE(parse(words, {}).ok()) << words.back();
  }
}

TEST(Quantization, FromTheEnvironment) {
  const auto result = parse({}, {{"TROUPE_QUANTIZATION", "wint4"}, {"TROUPE_KV_CACHE_DTYPE", "fp8"}});
  ASSERT_TRUE(result.ok()) << result.status().message;
  EXPECT_EQ(result->options.quantization.method, "wint4");
  EXPECT_EQ(kv_cache_dtype(result->options.quantization), KvCacheDType::fp8);
}

}  // namespace
}  // namespace troupe::config
