// A quantised copy of a checkpoint: the weights in memory are those of the original that is quantised while
// it loads, byte for byte; and copies that were spoiled are refused by the tensor's name.
#include "model/quantised_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "gpu/cpu.h"
#include "kernels/quantize.h"
#include "model/support/files.h"
#include "model/weights.inl"

namespace troupe::model {
namespace {

using config::QuantizationOptions;
using test::golden_directory;
using test::TempDirectory;

struct Opened {
  Result<ModelFiles> files;
  Status chosen;
};

Opened open(const std::filesystem::path& directory, const QuantizationOptions& options,
            config::Device device = config::Device::cpu) {
  Opened opened{open_model({.directory = directory.string()}), {}};
  opened.chosen = opened.files ? opened.files->choose(device, options) : opened.files.status();
  return opened;
}

class QuantisedCopyTest : public ::testing::Test {
 protected:
  // All bytes of the weights in memory.
  std::string loaded(const ModelFiles& files) {
    const auto weights = Weights<Cpu>::load(device, files.spec, files.formats, files.map);
    EXPECT_TRUE(weights.ok()) << weights.status().message;
    if (!weights.ok()) return {};
    return {static_cast<const char*>(weights->layout().embedding.data), weights->bytes()};
  }

  void copy(const std::string& golden, const QuantizationOptions& options,
            config::Device device = config::Device::cpu) {
    const Opened original = open(golden_directory(golden), options, device);
    ASSERT_TRUE(original.chosen.ok()) << original.chosen.message;
    const Status written =
        write_quantised_copy(*original.files, {golden_directory(golden), "config.json", into()});
    ASSERT_TRUE(written.ok()) << written.message;
  }

  // Writes the copy's tensors anew after a change.
  template <class Change>
  void spoil(Change&& change) {
    std::vector<test::TestTensor> tensors = test::tensors_of(*Checkpoint::open(into()));
    change(tensors);
    test::write_safetensors(into() / "model.safetensors", tensors);
  }
  static test::TestTensor& named(std::vector<test::TestTensor>& tensors, const std::string& name) {
    for (test::TestTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no " << name;
    return tensors.front();
  }
  void refused(const std::string& part, const QuantizationOptions& options = {},
               config::Device device = config::Device::cpu) {
    const Opened opened = open(into(), options, device);
    ASSERT_FALSE(opened.chosen.ok()) << part;
    EXPECT_NE(opened.chosen.message.find(part), std::string::npos) << opened.chosen.message;
    EXPECT_EQ(opened.chosen.message.find('\n'), std::string::npos);
  }

  // Codes and scales of `codes` are those that quantize.h makes of `numbers`.
  static void check_fp8(const WeightSource& numbers, const WeightSource& codes) {
    ASSERT_TRUE(codes.stored->fp8);
    ASSERT_EQ(codes.outputs, numbers.outputs);
    const auto from = *read_tensor(*numbers.tensor), made = *read_tensor(*codes.tensor),
               scales = *read_tensor(*codes.scales);
    const DType type = dtype_of(numbers.tensor->type);
    const auto number = [&](int o, int i) {
      const std::int64_t at =
          numbers.first + (numbers.transposed ? i * numbers.stride + o : o * numbers.stride + i);
      return load_element(from.data(), type, static_cast<std::size_t>(at));
    };
    for (int first = 0; first < codes.outputs; first += 128) {
      for (int begin = 0; begin < codes.inputs; begin += 128) {
        const int last = std::min(codes.outputs, first + 128), end = std::min(codes.inputs, begin + 128);
        float largest = 0;
        for (int o = first; o < last; ++o) {
          for (int i = begin; i < end; ++i) largest = std::max(largest, std::abs(number(o, i)));
        }
        const float scale = load_element(
            scales.data(), DType::f32,
            static_cast<std::size_t>(codes.first_scale + first / 128 * codes.scale_stride + begin / 128));
        ASSERT_EQ(scale, largest / 448) << codes.name;
        for (int o = first; o < last; ++o) {
          for (int i = begin; i < end; ++i) {
            ASSERT_EQ(
                std::to_integer<int>(made[static_cast<std::size_t>(codes.first + o * codes.stride + i)]),
                kernels::fp8_code_of(number(o, i), scale))
                << codes.name << ' ' << o << ' ' << i;
          }
        }
      }
    }
  }

  std::filesystem::path into() const { return directory.path() / "copy"; }

  Cpu device{{.threads = 2, .pin = false}};
  TempDirectory directory;
};

TEST_F(QuantisedCopyTest, LoadsTheSameBytes) {
  const QuantizationOptions kinds[] = {
      {.method = "wint8"},
      {.method = "wint4"},
      {.method = "wint4", .group = 32},
      {.method = R"({"quantization":"mix_quant","moe_quant_type":"wint4"})"}};
  for (const char* golden : {"gqa3_tied", "gqa5_untied_paddle", "moe_shared2", "moe_shared2_paddle",
                             "moe_interval", "vision_small", "vision_nested"}) {
    for (const QuantizationOptions& options : kinds) {
      SCOPED_TRACE(std::string(golden) + " " + options.method + " " + std::to_string(options.group));
      const Opened original = open(golden_directory(golden), options);
      ASSERT_TRUE(original.chosen.ok()) << original.chosen.message;
      if (!original.files->formats.quantised()) continue;
      if (options.group == 32 && original.files->spec.shared_experts > 1)
        continue;  // NoPlaceForAPieceOfAGroup
      std::filesystem::remove_all(into());
      copy(golden, options);
      const Opened copied = open(into(), {});
      ASSERT_TRUE(copied.chosen.ok()) << copied.chosen.message;
      EXPECT_EQ(copied.files->formats, original.files->formats);
      EXPECT_EQ(copied.files->dtype, original.files->dtype);
      const std::string expected = loaded(*original.files);
      EXPECT_FALSE(expected.empty());
      EXPECT_TRUE(loaded(*copied.files) == expected);
    }
  }
}

// The experts of both modalities are quantised; routers, correction biases, tower and resampler are as they
// were.
TEST_F(QuantisedCopyTest, OfAVisionLanguageModelHasTheHubsNames) {
  for (const char* golden : {"vision_small", "vision_nested"}) {
    SCOPED_TRACE(golden);
    std::filesystem::remove_all(into());
    copy(golden, {.method = "wint4"});
    const Checkpoint hub = *Checkpoint::open(golden_directory("vision_small")),
                     copied = *Checkpoint::open(into());
    int same = 0, codes = 0;
    for (const auto& [name, tensor] : hub.tensors()) {
      if (const FileTensor* packed = copied.find(name + "_packed")) {
        EXPECT_EQ(name.find("vision_model."), std::string::npos) << name;
        EXPECT_EQ(packed->shape[0], tensor.shape[0]) << name;
        ++codes;
        continue;
      }
      const FileTensor* const found = copied.find(name);
      ASSERT_NE(found, nullptr) << name;
      EXPECT_EQ(found->type, tensor.type) << name;
      if (found->shape == tensor.shape) {  // routers are turned
        EXPECT_EQ(*read_tensor(*found), *read_tensor(tensor)) << name;
        ++same;
      } else {
        EXPECT_NE(name.find("mlp.gate.weight"), std::string::npos) << name;
      }
    }
    EXPECT_EQ(codes, 3 * 4 + 3 + 2 * (2 * 6 * 3 + 3)) << "attention, a dense MLP, and experts of both kinds";
    EXPECT_GT(same, 40);
    const nlohmann::json config = nlohmann::json::parse(test::read_text(into() / "config.json"));
    const StoredQuantisation stored =
        *StoredQuantisation::parse(config["quantization_config"].dump(), "config.json");
    EXPECT_EQ(stored.of("model.layers.1.mlp.experts.11.up_proj")->bits, 4);
    for (const char* module : {"vision_model.blocks.0.attn.qkv", "vision_model.patch_embed.proj",
                               "model.resampler_model.spatial_linear.0", "model.layers.1.mlp.gate"}) {
      EXPECT_FALSE(stored.of(module).has_value()) << module;
    }
  }
}

TEST_F(QuantisedCopyTest, ACorrectionBiasOfAnotherTypeIsNamed) {
  std::vector<test::TestTensor> tensors =
      test::tensors_of(*Checkpoint::open(golden_directory("vision_nested")));
  const std::string name = "vision_moe.gate.moe_statics.e_score_correction_bias";
  bool found = false;
  for (test::TestTensor& tensor : tensors) {
    if (tensor.name.find(name) == std::string::npos) continue;
    tensor.dtype = "BF16";
    tensor.data.resize(tensor.data.size() / 2);
    found = true;
  }
  ASSERT_TRUE(found);
  const std::filesystem::path model = directory.path() / "model";
  std::filesystem::create_directory(model);
  std::filesystem::copy_file(golden_directory("vision_nested") / "config.json", model / "config.json");
  test::write_safetensors(model / "model.safetensors", tensors);
  const Opened original = open(model, {.method = "wint8"});
  ASSERT_TRUE(original.chosen.ok()) << original.chosen.message;
  const Status written = write_quantised_copy(*original.files, {model, "config.json", into()});
  EXPECT_EQ(written.code, Code::unsupported);
  EXPECT_NE(written.message.find(name + "' are F32 and BF16"), std::string::npos) << written.message;
}

// Two shared experts of 24 inputs, which are one matrix in the file.
TEST_F(QuantisedCopyTest, NoPlaceForAPieceOfAGroup) {
  const Opened original = open(golden_directory("moe_shared2"), {.method = "wint4", .group = 32});
  ASSERT_TRUE(original.chosen.ok()) << original.chosen.message;
  const Status written =
      write_quantised_copy(*original.files, {golden_directory("moe_shared2"), "config.json", into()});
  EXPECT_EQ(written.code, Code::unsupported);
  EXPECT_NE(written.message.find("shared_experts.down_proj, have 24 inputs"), std::string::npos)
      << written.message;
}

TEST_F(QuantisedCopyTest, AHeadOfItsOwn) {
  const QuantizationOptions options{.method = "wint8", .lm_head = config::LmHeadDType::int4};
  copy("gqa5_untied_paddle", options);
  const Opened copied = open(into(), {});
  ASSERT_TRUE(copied.chosen.ok()) << copied.chosen.message;
  EXPECT_EQ(copied.files->formats.lm_head.group, 64);
  EXPECT_TRUE(loaded(*copied.files) == loaded(*open(golden_directory("gqa5_untied_paddle"), options).files));
  refused("--lm-head-dtype", {.lm_head = config::LmHeadDType::int8});
}

// The format as its authors describe it: code + 2^(bits - 1) from the lowest bits on, weight = code * scale.
TEST_F(QuantisedCopyTest, IsCompressedTensors) {
  copy("gqa3_tied", {.method = "wint4"});
  const std::string name = "model.layers.0.self_attn.q_proj";
  const Checkpoint original = *Checkpoint::open(golden_directory("gqa3_tied")),
                   copied = *Checkpoint::open(into());
  const FileTensor& from = *original.find(name + ".weight");
  const auto numbers = *read_tensor(from), codes = *read_tensor(*copied.find(name + ".weight_packed")),
             scales = *read_tensor(*copied.find(name + ".weight_scale"));
  const auto outputs = static_cast<std::size_t>(from.shape[0]),
             inputs = static_cast<std::size_t>(from.shape[1]);
  const std::size_t words = (inputs + 7) / 8, groups = (inputs + 63) / 64;
  ASSERT_EQ(codes.size(), outputs * words * 4);
  ASSERT_EQ(scales.size(), outputs * groups * 2);
  for (std::size_t o = 0; o < outputs; ++o) {
    for (std::size_t i = 0; i < inputs; ++i) {
      std::uint32_t word;
      std::memcpy(&word, codes.data() + (o * words + i / 8) * 4, 4);
      const int code = static_cast<int>(word >> (4 * (i % 8)) & 15) - 8;
      const float scale = load_element(scales.data(), DType::bf16, o * groups + i / 64);
      ASSERT_NEAR(static_cast<float>(code) * scale,
                  load_element(numbers.data(), dtype_of(from.type), o * inputs + i), 0.51f * scale)
          << o << ", " << i;
    }
  }
  const nlohmann::json config = nlohmann::json::parse(test::read_text(into() / "config.json"));
  EXPECT_EQ(config["quantization_config"]["quant_method"], "compressed-tensors");
}

const QuantizationOptions kFp8{.method = "block_wise_fp8"};

// The form of Hugging Face's fp8 checkpoints. Loading on a GPU: cuda_quantised_copy_test.cpp.
TEST_F(QuantisedCopyTest, Fp8IsStoredInBlocks) {
  for (const char* golden : {"gqa5_untied_paddle", "moe_end"}) {
    SCOPED_TRACE(golden);
    std::filesystem::remove_all(into());
    copy(golden, kFp8, config::Device::cuda);
    const Opened original = open(golden_directory(golden), kFp8, config::Device::cuda);
    const Opened copied = open(into(), {}, config::Device::cuda);
    ASSERT_TRUE(copied.chosen.ok()) << copied.chosen.message;
    EXPECT_EQ(copied.files->formats, original.files->formats);
    EXPECT_TRUE(open(into(), kFp8, config::Device::cuda).chosen.ok()) << "what it is already";
    const auto& from = original.files->map.sources;
    ASSERT_EQ(copied.files->map.sources.size(), from.size());
    int checked = 0;
    for (const WeightSource& codes : copied.files->map.sources) {
      const auto numbers = std::ranges::find_if(from, [&](const WeightSource& s) {
        return s.weight == codes.weight && s.layer == codes.layer && s.expert == codes.expert;
      });
      ASSERT_NE(numbers, from.end());
      EXPECT_TRUE(all_finite(codes)) << codes.name;
      if (!codes.stored) continue;
      check_fp8(*numbers, codes);
      ++checked;
    }
    EXPECT_GE(checked, 7 * original.files->spec.layers);
    refused("needs an Ada or Hopper GPU; on the CPU use the one in bfloat16");
    refused("--quantization: got wint8", {.method = "wint8"}, config::Device::cuda);
  }
}

TEST_F(QuantisedCopyTest, Fp8ThatDoesNotFitIsNamed) {
  constexpr auto kCuda = config::Device::cuda;
  copy("gqa3_tied", kFp8, kCuda);
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string sound = test::read_text(into() / "model.safetensors");
  const auto restore = [&] { test::write_text(into() / "model.safetensors", sound); };
  const auto without = [&](const std::string& name) {
    return [name](auto& tensors) { std::erase_if(tensors, [&](const auto& t) { return t.name == name; }); };
  };
  spoil(without(q + "_scale_inv"));
  refused("'" + q + "' is F8_E4M3 and has no scales, '" + q + "_scale_inv'", {}, kCuda);
  restore();
  spoil(without(q));
  refused("'" + q + "' is missing beside its scales", {}, kCuda);
  restore();
  spoil([&](auto& tensors) { named(tensors, q + "_scale_inv").shape.push_back(1); });
  refused(q + "_scale_inv' is F32 of the shape", {}, kCuda);
  restore();
  spoil([&](auto& tensors) {
    auto& scales = named(tensors, q + "_scale_inv");
    scales.dtype = "U32";
  });
  refused(q + "_scale_inv' is U32", {}, kCuda);
  restore();
  spoil([&](auto& tensors) { named(tensors, q).dtype = "I8"; });
  refused("'" + q + "' is I8 of the shape", {}, kCuda);
  restore();
  spoil([&](auto& tensors) { named(tensors, q).data[5] = '\x7f'; });
  const Opened nan = open(into(), {}, kCuda);
  ASSERT_TRUE(nan.chosen.ok()) << nan.chosen.message;
  for (const WeightSource& source : nan.files->map.sources) EXPECT_EQ(all_finite(source), source.name != q);
  restore();
  spoil([&](auto& tensors) {
    named(tensors, q + "_scale_inv").data.replace(0, 4, std::string("\0\0\x80\x7f", 4));
  });
  const Opened infinite = open(into(), {}, kCuda);
  ASSERT_TRUE(infinite.chosen.ok()) << infinite.chosen.message;
  for (const WeightSource& source : infinite.files->map.sources)
    EXPECT_EQ(all_finite(source), source.name != q);
  restore();
  nlohmann::json config = nlohmann::json::parse(test::read_text(into() / "config.json"));
  config["quantization_config"]["modules_to_not_convert"].push_back("model.layers.0.self_attn.q_proj");
  test::write_text(into() / "config.json", config.dump());
  refused("'" + q + "' is quantised, and quantization_config does not say how", {}, kCuda);
}

TEST_F(QuantisedCopyTest, PlainTensorsUnderTheConfigOfQuantisedOnes) {
  const auto plain = golden_directory("gqa3_tied") / "model.safetensors";
  copy("gqa3_tied", kFp8, config::Device::cuda);
  std::filesystem::copy_file(plain, into() / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  refused("is not quantised, and by quantization_config its kind is fp8", {}, config::Device::cuda);
  std::filesystem::remove_all(into());
  copy("gqa3_tied", {.method = "wint8"});
  std::filesystem::copy_file(plain, into() / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  refused("is not quantised, and by quantization_config its kind is int8");
}

TEST_F(QuantisedCopyTest, Fp8ThatNoFileCanHold) {
  const auto refused_to_write = [&](const char* golden, const QuantizationOptions& options,
                                    const std::string& part) {
    const Opened original = open(golden_directory(golden), options, config::Device::cuda);
    ASSERT_TRUE(original.chosen.ok()) << original.chosen.message;
    const Status written =
        write_quantised_copy(*original.files, {golden_directory(golden), "config.json", into()});
    EXPECT_EQ(written.code, Code::unsupported);
    EXPECT_NE(written.message.find(part), std::string::npos) << written.message;
  };
  refused_to_write("moe_shared2", kFp8, "shared_experts.gate_proj, have 24 outputs each");
  refused_to_write(
      "moe_end",
      {.method =
           R"({"quantization":"mix_quant","dense_quant_type":"block_wise_fp8","moe_quant_type":"wint4"})"},
      "holds fp8 or integers, and not fp8 in blocks of 128 × 128, experts int4");
}

TEST_F(QuantisedCopyTest, WhatDoesNotFitIsNamed) {
  copy("gqa3_tied", {.method = "wint4"});
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  refused("--quantization: got wint8", {.method = "wint8"});
  EXPECT_TRUE(open(into(), {.method = "wint4"}).chosen.ok()) << "what it is already";
  const auto without = [&](const std::string& name) {
    return [name](auto& tensors) { std::erase_if(tensors, [&](const auto& t) { return t.name == name; }); };
  };
  const std::string sound = test::read_text(into() / "model.safetensors");
  const auto restore = [&] { test::write_text(into() / "model.safetensors", sound); };
  spoil(without(q + "_scale"));
  refused("'" + q + "_packed' has no scales");
  restore();
  spoil(without(q + "_packed"));
  refused(q + "_packed' is missing");
  restore();
  spoil([&](auto& tensors) { named(tensors, q + "_scale").shape.push_back(1); });
  refused(q + "_scale' is BF16 of the shape");
  restore();
  spoil([&](auto& tensors) { named(tensors, q + "_shape").data[0] ^= 1; });
  refused(q + "_shape' says");
  restore();
  nlohmann::json config = nlohmann::json::parse(test::read_text(into() / "config.json"));
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 8;
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"] = "channel";
  test::write_text(into() / "config.json", config.dump());
  refused("_packed' is I32 of the shape");
  config.erase("quantization_config");
  test::write_text(into() / "config.json", config.dump());
  refused("quantization_config does not say how");
}

TEST_F(QuantisedCopyTest, AScaleThatIsNoNumber) {
  copy("gqa3_tied", {.method = "wint4"});
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  spoil([&](auto& tensors) {
    named(tensors, name + "_scale").data.replace(0, 2, "\x80\x7f");
  });  // infinity in bf16
  const Opened opened = open(into(), {});
  ASSERT_TRUE(opened.chosen.ok()) << opened.chosen.message;
  const auto weights =
      Weights<Cpu>::load(device, opened.files->spec, opened.files->formats, opened.files->map);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().message,
            "The tensor '" + name + "_packed' has a NaN or an infinity among its scales.");
}

TEST_F(QuantisedCopyTest, PaddlesOrderNeedsScales) {
  const std::filesystem::path golden = golden_directory("gqa3_tied");
  std::vector<test::TestTensor> tensors = test::tensors_of(*Checkpoint::open(golden));
  tensors.push_back({"ernie.layers.0.mlp.experts.0.down_proj.quant_weight", "I8", {2}, std::string(2, '\0')});
  std::filesystem::create_directories(into());
  std::filesystem::copy_file(golden / "config.json", into() / "config.json");
  test::write_safetensors(into() / "model.safetensors", tensors);
  refused("down_proj.quant_weight' has no scales");
}

}  // namespace
}  // namespace troupe::model
