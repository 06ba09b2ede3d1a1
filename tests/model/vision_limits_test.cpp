// Where vision-language models do not run yet, and that they run quantised.
#include <gtest/gtest.h>

#include "gpu/cpu.h"
#include "model/quantised_copy.h"
#include "model/sizing.h"
#include "model/support/vision_golden.h"
#include "model/vision/tower_memory.h"

namespace troupe::model {
namespace {

ModelFiles open() {
  auto files = open_model({.directory = test::golden_directory("vision_small").string()});
  EXPECT_TRUE(files.ok()) << files.status().message;
  return std::move(*files);
}

void expect_unsupported(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code, Code::unsupported);
  EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
}

TEST(VisionLimits, OneRankOnTheCpu) {
  ModelFiles files = open();
  expect_unsupported(files.choose(config::Device::cuda, {}), "--device cpu");
  EXPECT_TRUE(files.choose(config::Device::cpu, {}).ok());
  expect_unsupported(check_ranks(files, {.rank = 0, .ranks = 2}), "--tensor-parallel-size is 2");
  EXPECT_TRUE(check_ranks(files, {}).ok());
  const test::TempDirectory into;
  expect_unsupported(
      write_quantised_copy(files, {.from = test::golden_directory("vision_small"), .into = into.path()}),
      "while they load");
}

// Experts of both kinds are quantised; tower and resampler keep the activations' type.
TEST(VisionLimits, Quantised) {
  const test::VisionGolden golden = test::load_vision_golden("text");
  for (const char* method : {"wint8", "wint4"}) {
    ModelFiles files = open();
    ASSERT_TRUE(files.choose(config::Device::cpu, {.method = method}).ok());
    Cpu device({.threads = 2, .pin = false});
    auto weights = Weights<Cpu>::load(device, files.spec, files.formats, files.map);
    ASSERT_TRUE(weights.ok()) << weights.status().message;
    const WeightLayout& layout = weights->layout();
    EXPECT_TRUE(layout.layers[1].vision.gate_up.first.format.quantised());
    EXPECT_FALSE(layout.layers[1].vision.router.format.quantised());
    EXPECT_FALSE(layout.vision.blocks[0].qkv.weight.format.quantised());
    auto decoder =
        Decoder<Cpu>::make(device, files.spec, files.formats, std::move(*weights), test::kGoldenLimits);
    ASSERT_TRUE(decoder.ok());
    StepBatch batch;
    const std::vector<BlockId> blocks{1};
    batch.tokens = golden.ids;
    batch.sequences = {{blocks.data(), 0, static_cast<int>(golden.ids.size()), 0}};
    batch.kinds.assign(golden.ids.size(), kTextRow);
    batch.kinds[3] = batch.kinds[4] = kVisionRow;
    batch.sample_rows = {0, 1, 2, 3, 4};
    std::vector<float> logits(5 * static_cast<std::size_t>(files.spec.vocab));
    (*decoder)->logits(batch, logits);
    for (const float value : logits) ASSERT_TRUE(std::isfinite(value));
    const std::span<const float> of_text =
        std::span(logits).first(3 * static_cast<std::size_t>(files.spec.vocab));
    EXPECT_LE(test::relative_error(of_text, std::span(golden.logits).first(of_text.size())), 0.35) << method;
  }
}

// What is drawn at random has every weight, also those of the tower.
TEST(VisionLimits, DummyWeights) {
  const ModelFiles files = open();
  Cpu device({.threads = 2, .pin = false});
  const auto weights = Weights<Cpu>::dummy(device, files.spec, DType::f32, 7);
  ASSERT_TRUE(weights.ok());
  VisionWeights vision = weights->layout().vision;
  for (const VisionTensor& tensor : vision_tensors(*files.spec.vision, files.spec.hidden, vision)) {
    const float* first =
        tensor.matrix != nullptr ? static_cast<const float*>(tensor.matrix->data) : *tensor.vector;
    EXPECT_NE(*first, 0) << tensor.name;
    if (tensor.scales) {
      EXPECT_NEAR(*first, 1, 0.2) << tensor.name;
    }
  }
  const VisionExperts& experts = weights->layout().layers[1].vision;
  EXPECT_GE(experts.router_bias[0], kLowestBias - 1);
  EXPECT_NE(experts.router_bias[0], weights->layout().layers[1].router_bias[0]);
  EXPECT_NE(*static_cast<const float*>(experts.down.at(5).data), 0);
}

TEST(VisionLimits, TheTowersMemoryIsCounted) {
  const ModelFiles files = open();
  config::Options options;
  options.device.num_gpu_blocks_override = 16;
  ModelSpec text = files.spec;
  text.vision.reset();
  const HostMemory memory(std::uint64_t{8} << 30);
  const auto with = size_cpu(files.spec, DType::bf16, true, options, memory);
  const auto without = size_cpu(text, DType::bf16, true, options, memory);
  ASSERT_TRUE(with.ok() && without.ok()) << with.status().message;
  const std::size_t tower =
      TowerMemory::make(*files.spec.vision, files.spec.hidden, DType::bf16, kMostFramePatches, {}).bytes;
  // And the encoder's output: of the longest sequence, and what is kept.
  EXPECT_EQ(with->media_tokens, with->max_model_len);
  EXPECT_EQ(without->media_tokens, 0);
  const auto output = [&](std::int64_t tokens) {
    return static_cast<std::uint64_t>(tokens) *
           static_cast<std::uint64_t>(kernels::padded(files.spec.hidden)) * size_of(DType::bf16);
  };
  const std::uint64_t fixed = without->arena_bytes + tower;
  const std::uint64_t usual = output(with->max_model_len + with->max_tokens_per_step);
  EXPECT_GE(with->arena_bytes, fixed + usual);
  EXPECT_LT(with->arena_bytes, fixed + usual + 4096);

  options.media.encoder_cache_tokens = 0;
  const auto keeps_none = size_cpu(files.spec, DType::bf16, true, options, memory);
  ASSERT_TRUE(keeps_none.ok());
  EXPECT_EQ(with->arena_bytes - keeps_none->arena_bytes, output(with->max_tokens_per_step));

  options.media.encoder_cache_tokens = 1 << 30;
  const auto too_much = size_cpu(files.spec, DType::bf16, true, options, memory);
  ASSERT_FALSE(too_much.ok());
  EXPECT_NE(too_much.status().message.find("--max-encoder-cache"), std::string::npos)
      << too_much.status().message;
}

}  // namespace
}  // namespace troupe::model
