// Where vision-language models do not run yet, and what they take.
#include <gtest/gtest.h>

#include "gpu/cpu.h"
#include "model/preflight.h"
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

TEST(VisionLimits, LargerImagesTakeALargerTower) {
  const ModelFiles files = open();
  config::Options options;
  const auto usual = cuda_limits(files.spec, DType::bf16, true, options);
  options.media.processor_kwargs = R"({"image_max_pixels": 12845056})";
  const auto large = cuda_limits(files.spec, DType::bf16, true, options);
  ASSERT_TRUE(usual.ok() && large.ok()) << large.status().message;
  EXPECT_EQ(usual->frame_patches, kMostFramePatches);
  EXPECT_EQ(large->frame_patches, 256 * 256);
  const auto tower = [&](int patches) {
    return TowerMemory::make(*files.spec.vision, files.spec.hidden, DType::bf16, patches, 0, {}).bytes;
  };
  EXPECT_GE(large->arena_bytes - usual->arena_bytes, tower(256 * 256) - tower(kMostFramePatches));
}

TEST(VisionLimits, AGpusMemoryIsCounted) {
  const ModelFiles files = open();
  config::Options options;
  ModelSpec text = files.spec;
  text.vision.reset();
  const auto with = cuda_limits(files.spec, DType::bf16, true, options),
             without = cuda_limits(text, DType::bf16, true, options);
  ASSERT_TRUE(with.ok() && without.ok()) << with.status().message;
  EXPECT_EQ(with->media_tokens, with->max_model_len);
  EXPECT_EQ(without->media_tokens, 0);
  const std::uint64_t tower =
      TowerMemory::make(*files.spec.vision, files.spec.hidden, DType::bf16, kMostFramePatches, 0, {}).bytes;
  const std::uint64_t least = tower + encoder_output_bytes(*with, files.spec, DType::bf16, options);
  EXPECT_GE(with->arena_bytes, without->arena_bytes + least);
  EXPECT_LT(with->arena_bytes, without->arena_bytes + least + (std::uint64_t{64} << 20));

  // Queries, keys and values of the released models' heads are packed for the tensor cores.
  ModelSpec released = files.spec;
  released.vision->width = 1280;
  released.vision->heads = 16;
  const auto packs = cuda_limits(released, DType::bf16, true, options);
  const auto f32 = cuda_limits(released, DType::f32, true, options);
  ASSERT_TRUE(packs.ok() && f32.ok());
  const std::uint64_t unpacked =
      TowerMemory::make(*released.vision, released.hidden, DType::bf16, kMostFramePatches, 0, {}).bytes;
  EXPECT_GE(packs->arena_bytes,
            without->arena_bytes + unpacked + std::uint64_t{3} * kMostFramePatches * 1280 * 2);
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
      TowerMemory::make(*files.spec.vision, files.spec.hidden, DType::bf16, kMostFramePatches, 0, {}).bytes;
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
