// Checkpoints that are quantised already on the GPU: the weights in its memory are those of the original that
// is quantised while it loads, byte for byte.
#include <gtest/gtest.h>

#include <cstring>

#include "gpu/cuda.h"
#include "model/quantised_copy.h"
#include "model/support/files.h"
#include "model/weights.inl"

namespace troupe::model {
namespace {

using config::QuantizationOptions;
using test::golden_directory;

class CudaQuantisedCopy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device = std::make_unique<Cuda>();
  }
  static Result<ModelFiles> open(const std::filesystem::path& folder, const QuantizationOptions& options) {
    auto files = open_model({.directory = folder.string()});
    if (!files.ok()) return files;
    if (Status s = files->choose(config::Device::cuda, options); !s.ok()) return s;
    return files;
  }
  Result<Weights<Cuda>> load(const ModelFiles& files) {
    return Weights<Cuda>::load(*device, files.spec, files.formats, files.map);
  }
  std::string bytes_of(const ModelFiles& files) {
    const auto weights = load(files);
    EXPECT_TRUE(weights.ok()) << weights.status().message;
    if (!weights.ok()) return {};
    std::string bytes(weights->bytes(), '\0');
    device->download(bytes.data(), weights->layout().embedding.data, bytes.size());
    device->sync();
    return bytes;
  }
  std::filesystem::path into() const { return directory.path() / "copy"; }

  std::unique_ptr<Cuda> device;
  test::TempDirectory directory;
};

TEST_F(CudaQuantisedCopy, LoadsTheSameBytes) {
  const QuantizationOptions kinds[] = {
      {.method = "wint8"},
      {.method = "wint4"},
      {.method = "wint4", .group = 32},
      {.method = "wint8", .lm_head = config::LmHeadDType::int4},
      {.method = R"({"quantization":"mix_quant","moe_quant_type":"wint4"})"},
      {.method = "block_wise_fp8"},
      {.method = R"({"quantization":"mix_quant","moe_quant_type":"block_wise_fp8"})"}};
  int loaded = 0;
  for (const char* golden :
       {"gqa3_tied", "gqa5_untied_paddle", "moe_shared2_paddle", "moe_interval", "moe_end"}) {
    for (const QuantizationOptions& options : kinds) {
      SCOPED_TRACE(std::string(golden) + " " + options.method + " " + std::to_string(options.group));
      const auto original = open(golden_directory(golden), options);
      ASSERT_TRUE(original.ok()) << original.status().message;
      if (!original->formats.quantised()) continue;
      if (original->tied && original->formats.lm_head.quantised()) continue;
      std::filesystem::remove_all(into());
      const Status written =
          write_quantised_copy(*original, {golden_directory(golden), "config.json", into()});
      // Slices of shared experts that blocks or groups cannot be cut into.
      if (written.code == Code::unsupported && original->spec.shared_experts > 1) continue;
      ASSERT_TRUE(written.ok()) << written.message;
      const auto copied = open(into(), {});
      ASSERT_TRUE(copied.ok()) << copied.status().message;
      EXPECT_EQ(copied->formats, original->formats);
      const std::string expected = bytes_of(*original);
      EXPECT_FALSE(expected.empty());
      EXPECT_TRUE(bytes_of(*copied) == expected);
      ++loaded;
    }
  }
  EXPECT_GE(loaded, 20);
}

TEST_F(CudaQuantisedCopy, AnFp8CodeThatIsNoNumber) {
  const auto original = open(golden_directory("gqa3_tied"), {.method = "block_wise_fp8"});
  ASSERT_TRUE(original.ok()) << original.status().message;
  const Status written =
      write_quantised_copy(*original, {golden_directory("gqa3_tied"), "config.json", into()});
  ASSERT_TRUE(written.ok()) << written.message;
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  std::vector<test::TestTensor> tensors = test::tensors_of(*Checkpoint::open(into()));
  for (test::TestTensor& tensor : tensors) {
    if (tensor.name == name) tensor.data[100] = '\xff';
  }
  test::write_safetensors(into() / "model.safetensors", tensors);
  const auto spoiled = open(into(), {});
  ASSERT_TRUE(spoiled.ok()) << spoiled.status().message;
  const auto weights = load(*spoiled);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().message,
            "The tensor '" + name + "' has a NaN or an infinity among its codes or scales.");
}

}  // namespace
}  // namespace troupe::model
