// Codes and scales of -Paddle checkpoints beside what tools/generate/make_paddle_codes.py wrote from the
// formats' text, and quantization_config of such checkpoints. Whole models: tests/e2e/paddle_test.py.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/checkpoint/paddle_codes.h"
#include "model/checkpoint/paddle_quantisation.h"
#include "model/checkpoint/static_scales.h"
#include "model/checkpoint/stored_quantisation.h"
#include "model/weight_formats.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

class PaddleCodesTest : public ::testing::Test {
 protected:
  PaddleCodesTest()
      : file_(std::move(*Checkpoint::open_file(std::filesystem::path(TROUPE_TEST_DATA) / "paddle" /
                                               "codes.safetensors"))) {}

  void rows_are_the_codes(const std::string& name, const StoredFormat& format) {
    const FileTensor& codes = *file_.find(name + ".codes");
    const auto outputs = static_cast<std::size_t>(codes.shape[0]),
               inputs = static_cast<std::size_t>(codes.shape[1]);
    const auto expected = read_tensor(codes), bytes = read_tensor(*file_.find(name + ".bytes"));
    ASSERT_TRUE(expected.ok() && bytes.ok());
    const std::vector<std::byte> rows = rows_of_codes(*bytes, format, outputs, inputs);
    for (std::size_t i = 0; i < outputs * inputs; ++i) {
      const int stored = format.bits == 8 ? std::to_integer<int>(rows[i])
                         : i % 2 == 0     ? std::to_integer<int>(rows[i / 2]) & 15
                                          : std::to_integer<int>(rows[i / 2]) >> 4;
      ASSERT_EQ(stored - (1 << (format.bits - 1)), static_cast<std::int8_t>((*expected)[i]))
          << name << " output " << i / inputs << " input " << i % inputs;
    }
  }

  Checkpoint file_;
};

TEST_F(PaddleCodesTest, EightBits) { rows_are_the_codes("wint8", {.bits = 8, .order = CodeOrder::paddle}); }
TEST_F(PaddleCodesTest, FourBits) { rows_are_the_codes("wint4", {.bits = 4, .order = CodeOrder::paddle}); }
TEST_F(PaddleCodesTest, W4A8InTheKernelsOrder) {
  rows_are_the_codes("w4a8", {.bits = 4, .order = CodeOrder::paddle_w4a8});
}
TEST_F(PaddleCodesTest, W4A8InRows) {
  rows_are_the_codes("w4a8_rows", {.bits = 4, .order = CodeOrder::paddle_w4a8_rows});
}

TEST_F(PaddleCodesTest, ScalesOfW4A8AreFinished) {
  const FileTensor &magnitudes = *file_.find("magnitudes"), &input = *file_.find("input_magnitude");
  WeightSource source{.tensor = &magnitudes,
                      .outputs = static_cast<int>(magnitudes.shape[0]),
                      .stored = StoredFormat{.bits = 4, .order = CodeOrder::paddle_w4a8_rows},
                      .scales = &magnitudes,
                      .scale_stride = 1,
                      .input_scale = &input};
  const auto expected = read_tensor(*file_.find("finished"));
  const std::vector<float> finished = finished_scales(source);
  for (std::size_t i = 0; i < finished.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, expected->data() + 2 * i, 2);
    EXPECT_EQ(finished[i], bf16_to_float(bits)) << i;
  }
  EXPECT_FLOAT_EQ(static_input_of(source).to_codes, 127 / 7.3f);
  source.stored->order = CodeOrder::paddle_w4a8;  // the same numbers as reciprocals and finished scales
  EXPECT_FLOAT_EQ(static_input_of(source).to_codes, 127 * 7.3f);
  std::vector<float> as_they_are(finished.size());
  const auto bytes = read_tensor(magnitudes);
  std::memcpy(as_they_are.data(), bytes->data(), bytes->size());
  EXPECT_EQ(finished_scales(source), as_they_are);
}

TEST(PaddleCodes, TensorsThatDoNotFitAreRefusedWithTheirShape) {
  const StoredFormat wint8{.bits = 8, .order = CodeOrder::paddle},
      wint4{.bits = 4, .order = CodeOrder::paddle}, rows{.bits = 4, .order = CodeOrder::paddle_w4a8_rows};
  const auto refused = [](std::vector<std::int64_t> shape, const StoredFormat& format, std::int64_t outputs,
                          std::int64_t inputs, FileType type = FileType::i8) {
    FileTensor tensor{.type = type, .shape = shape, .bytes = 1};
    for (const std::int64_t side : shape) tensor.bytes *= static_cast<std::uint64_t>(side);
    return check_paddle_codes(tensor, format, outputs, inputs).message;
  };
  EXPECT_EQ(refused({128, 64}, wint8, 128, 64), "");
  EXPECT_EQ(refused({64, 128}, wint8, 128, 64), "");  // a label
  EXPECT_EQ(refused({64, 64}, wint4, 128, 64), "");
  EXPECT_EQ(refused({32, 128}, rows, 128, 64), "");
  EXPECT_NE(refused({128, 32}, rows, 128, 64).find("expected is I8 of [32, 128]"), std::string::npos);
  EXPECT_NE(refused({64, 64}, wint8, 128, 64).find("[64, 64]; expected is a matrix of I8 with 8192 bytes"),
            std::string::npos);
  EXPECT_NE(refused({128, 64}, wint8, 128, 64, FileType::bf16).find("is BF16"), std::string::npos);
  EXPECT_NE(
      refused({128, 96}, wint8, 128, 96).find("96 inputs; its order takes multiples of 2 outputs and 64"),
      std::string::npos);
  EXPECT_NE(refused({1, 64}, wint4, 2, 64).find("multiples of 4 outputs"), std::string::npos);
}

Result<StoredQuantisation> parse(const char* json) { return StoredQuantisation::parse(json, "config.json"); }

TEST(PaddleQuantisation, TypesByModule) {
  const auto read =
      parse(R"({"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4"})");
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_TRUE(read->paddle());
  EXPECT_FALSE(read->static_kv());
  EXPECT_EQ(read->of("model.layers.3.self_attn.qkv_proj"),
            (StoredFormat{.bits = 8, .order = CodeOrder::paddle}));
  EXPECT_EQ(read->of("model.layers.3.mlp.shared_experts.down_proj")->bits, 8);
  EXPECT_EQ(read->of("model.layers.3.mlp.experts.7.down_proj"),
            (StoredFormat{.bits = 4, .order = CodeOrder::paddle}));
  EXPECT_EQ(read->of("lm_head"), std::nullopt);
  EXPECT_EQ(parse(R"({"quantization": "wint4"})")->of("model.layers.0.mlp.down_proj")->bits, 8);
}

TEST(PaddleQuantisation, W4A8) {
  constexpr const char* kExpert = "model.layers.3.mlp.experts.7.down_proj";
  const auto permuted = parse(
      R"({"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "w4a8",
          "kv_cache_quant_type": "int8"})");
  ASSERT_TRUE(permuted.ok()) << permuted.status().message;
  EXPECT_EQ(permuted->of(kExpert)->order, CodeOrder::paddle_w4a8);
  EXPECT_TRUE(permuted->static_kv());
  const auto raw = parse(R"({"quantization": "w4a8", "is_permuted": false, "hadamard_block_size": 128})");
  EXPECT_EQ(raw->of(kExpert)->order, CodeOrder::paddle_w4a8_rows);
  for (const auto& [json, named] :
       {std::pair{R"({"quantization": "w4a8", "hadamard_block_size": 512})", "hadamard_block_size 512"},
        std::pair{R"({"quantization": "w4afp8"})", "w4afp8"},
        std::pair{R"({"quantization": "wint2.5"})", "wint2.5"},
        std::pair{R"({"quantization": "w4a8", "kv_cache_quant_type": "int8_zp"})", "int8_zp"},
        std::pair{R"({"quantization": "mix_quant", "dense_quant_type": "w4a8"})", "dense_quant_type w4a8"}}) {
    const Status refused = parse(json).status();
    EXPECT_EQ(refused.code, Code::unsupported) << json;
    EXPECT_NE(refused.message.find(named), std::string::npos) << refused.message;
  }
}

TEST(PaddleQuantisation, ExpertsOfTheFirstLayersHaveAFormatOfTheirOwn) {
  const auto read = parse(
      R"({"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "w8w4", "moe_quant_config": {
          "early": {"quant_type": "wint8", "quant_start_layer": 0, "quant_end_layer": 6},
          "late": {"quant_type": "wint4", "quant_start_layer": 7, "quant_end_layer": 53}}})");
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_EQ(read->of("model.layers.6.mlp.experts.0.down_proj")->bits, 8);
  EXPECT_EQ(read->of("model.layers.7.mlp.experts.0.down_proj")->bits, 4);

  ModelSpec spec{.layers = 9,
                 .heads = 2,
                 .kv_heads = 2,
                 .head_dim = 64,
                 .experts = 4,
                 .top_k = 1,
                 .expert_intermediate = 128,
                 .moe_start = 3,
                 .moe_end = 8};
  spec.stored_quantisation = *read;
  const auto formats = choose_formats(spec, DType::bf16, config::Device::cpu, {});
  ASSERT_TRUE(formats.ok()) << formats.status().message;
  EXPECT_EQ(formats->early_layers, 7);
  EXPECT_EQ(formats->experts_of(6).kind, kernels::WeightKind::int8);
  EXPECT_EQ(formats->experts_of(7).kind, kernels::WeightKind::int4);
  EXPECT_NE(to_string(*formats, spec).find("experts int8 below layer 7 and int4 from it on"),
            std::string::npos);
}

TEST(PaddleQuantisation, W4A8RotatesWholeBlocks) {
  ModelSpec spec{.layers = 2,
                 .heads = 2,
                 .kv_heads = 2,
                 .head_dim = 64,
                 .experts = 4,
                 .top_k = 1,
                 .expert_intermediate = 128,
                 .moe_start = 1,
                 .moe_end = 1};
  spec.stored_quantisation = *parse(R"({"quantization": "w4a8"})");
  const auto formats = [&](config::Device device) { return choose_formats(spec, DType::bf16, device, {}); };
  for (const config::Device device : {config::Device::cpu, config::Device::cuda}) {
    spec.expert_intermediate = 128;
    ASSERT_TRUE(formats(device).ok()) << formats(device).status().message;
    EXPECT_TRUE(formats(device)->w4a8);
    spec.expert_intermediate = 192;
    EXPECT_NE(formats(device).status().message.find("moe_intermediate_size is 192"), std::string::npos);
  }
}

TEST(PaddleQuantisation, SharedExpertsHaveTheTypeOfDenseLinears) {
  ModelSpec spec{.vocab = 64,
                 .hidden = 128,
                 .intermediate = 128,
                 .layers = 3,
                 .heads = 2,
                 .kv_heads = 2,
                 .head_dim = 64,
                 .experts = 4,
                 .top_k = 1,
                 .expert_intermediate = 128,
                 .shared_experts = 2,
                 .moe_start = 1,
                 .moe_end = 2};
  const auto formats = [&](const char* json) {
    spec.stored_quantisation = *parse(json);
    const auto chosen = choose_formats(spec, DType::bf16, config::Device::cpu, {});
    EXPECT_TRUE(chosen.ok()) << chosen.status().message;
    return chosen.ok() ? *chosen : WeightFormats{};
  };
  for (const char* experts : {"wint4", "wint2", "w4a8"}) {
    const WeightFormats made =
        formats((std::string(R"({"quantization": "mix_quant", "dense_quant_type": "wint8",
                                                        "moe_quant_type": ")") +
                 experts + "\"}")
                    .c_str());
    EXPECT_EQ(made.shared->kind, kernels::WeightKind::int8);
    EXPECT_TRUE(made.shared_apart(2));
    const WeightLayout layout = WeightLayout::make(spec, made, true, {});
    EXPECT_EQ(layout.layers[2].expert_down.count, 4);
    EXPECT_EQ(layout.layers[2].shared_down.count, 2);
    EXPECT_EQ(layout.layers[2].shared_down.first.format.kind, kernels::WeightKind::int8);
    EXPECT_NE(to_string(made, spec).find("shared experts int8"), std::string::npos);
  }
  const WeightFormats alike = formats(R"({"quantization": "wint8"})");
  EXPECT_FALSE(alike.shared_apart(2));
  EXPECT_EQ(WeightLayout::make(spec, alike, true, {}).layers[2].expert_down.count, 6);
  spec.expert_intermediate = 80;
  const auto refused = choose_formats(spec, DType::bf16, config::Device::cpu, {});
  ASSERT_TRUE(refused.ok());  // they are in the stacks
  spec.stored_quantisation = *parse(R"({"quantization": "wint4"})");
  const Status narrow = choose_formats(spec, DType::bf16, config::Device::cpu, {}).status();
  EXPECT_NE(narrow.message.find("moe_intermediate_size is 80"), std::string::npos) << narrow.message;
}

}  // namespace
}  // namespace troupe::model
