#include "config/json_flags.h"

#include <gtest/gtest.h>

#include "config/media_rules.h"

namespace troupe::config {
namespace {

std::string message(Status status) { return status.message; }

TEST(JsonFlags, NotAnObject) {
  for (const char* text : {"", "[]", "7", "{", "{\"a\":}", "nonsense", "{} {}"}) {
    EXPECT_NE(message(check_json_object(text)).find("expected a JSON object"), std::string::npos) << text;
  }
  std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_FALSE(check_json_object(deep).ok()) << "too long";
  deep = "{\"a\":" + std::string(30, '[') + std::string(30, ']') + "}";
  EXPECT_FALSE(check_json_object(deep).ok()) << "too deep";
}

TEST(JsonFlags, AKeyGivenTwice) {
  EXPECT_EQ(message(check_json_object(R"({"a": 1, "b": {"c": 2, "c": 3}})")), "the key \"c\" is given twice");
  EXPECT_EQ(message(check_early_stop_config(R"({"threshold": 1, "threshold": 1})")),
            "the key \"threshold\" is given twice");
  EXPECT_TRUE(check_json_object(R"({"a": {"c": 2}, "b": [{"c": 2}, {"c": 3}]})").ok());
}

TEST(JsonFlags, GraphOptimizationConfig) {
  EXPECT_TRUE(check_graph_optimization_config(
                  R"({"use_cudagraph": true, "graph_opt_level": 0, "cudagraph_capture_sizes": [1, 2, 4]})")
                  .ok());
  EXPECT_FALSE(check_graph_optimization_config(R"({"graph_opt_level": 3})").ok());
  EXPECT_FALSE(check_graph_optimization_config(R"({"cudagraph_capture_sizes": []})").ok());
  EXPECT_FALSE(check_graph_optimization_config(R"({"cudagraph_capture_sizes": [0]})").ok());
  EXPECT_FALSE(check_graph_optimization_config(R"({"cudagraph_capture_sizes": ["a"]})").ok());
}

TEST(JsonFlags, EarlyStopConfig) {
  EXPECT_TRUE(
      check_early_stop_config(
          R"({"enable_early_stop": true, "strategy": "repetition", "window_size": 3000, "threshold": 0.99})")
          .ok());
  EXPECT_FALSE(check_early_stop_config(R"({"strategy": "other"})").ok());
  EXPECT_FALSE(check_early_stop_config(R"({"window_size": 0})").ok());
  EXPECT_FALSE(check_early_stop_config(R"({"threshold": 1.1})").ok());
}

TEST(JsonFlags, MediaAndTheRest) {
  EXPECT_TRUE(check_limit_mm_per_prompt(R"({"image": 100, "video": 100})").ok());
  EXPECT_FALSE(check_limit_mm_per_prompt(R"({"image": -1})").ok());
  EXPECT_FALSE(check_limit_mm_per_prompt(R"({"images": 1})").ok());
  EXPECT_TRUE(check_mm_processor_kwargs(R"({"image_max_pixels": 12845056 })").ok());
  EXPECT_FALSE(check_mm_processor_kwargs(R"({"image_max_pixels": "many"})").ok());
  EXPECT_FALSE(check_mm_processor_kwargs(R"({"video_fps": -2})").ok());
  EXPECT_TRUE(check_rsync_config(R"({"etcd_server": "host:1"})").ok());
  EXPECT_FALSE(check_rsync_config("{}").ok());
  EXPECT_TRUE(check_eplb_config(R"({"redundant_experts_num": 0, "moe_quant_type": "w4a8"})").ok());
  EXPECT_TRUE(check_plas_attention_config(R"({"plas_block_size": 128})").ok());
  EXPECT_FALSE(check_pooler_config(R"({"normalize": "yes"})").ok());
}

TEST(JsonFlags, SizesOfMedia) {
  const auto fault = [](const char* text) { return message(check_mm_processor_kwargs(text)); };
  EXPECT_EQ(fault(R"({"image_max_pixels": "many"})"),
            "image_max_pixels must be a whole number from 1 to 2147483647, got \"many\"");
  EXPECT_EQ(fault(R"({"video_frames_sample": "rand"})"),
            "video_frames_sample must be \"leading\" or \"middle\", got \"rand\"");
  EXPECT_EQ(fault(R"({"image_max_pixels": 784})"),
            "image_min_pixels (3136) must be at most image_max_pixels (784)");
  EXPECT_EQ(fault(R"({"spatial_conv_size": 4})"), "spatial_conv_size must be 2, which is the model's, got 4");
  EXPECT_EQ(fault(R"({"video_target_frames": 20, "video_fps": 2})"),
            "video_fps must be -1, or left out, if video_target_frames is given");
  EXPECT_EQ(fault(R"({"temporal_conv_size": 2, "video_max_frames": null, "do_resize": false})"), "")
      << "what is unknown is warned of";
  EXPECT_TRUE(unknown_media_sizes(R"({"video_fps": 1})").empty());
  EXPECT_TRUE(unknown_media_sizes("").empty());
  const std::string warning = unknown_media_sizes(R"({"video_fps": 1, "do_resize": false})");
  EXPECT_NE(warning.find("--mm-processor-kwargs has \"do_resize\"; known are image_min_pixels, "),
            warning.npos)
      << warning;
}

TEST(JsonFlags, RulesOfMedia) {
  const MediaRules absent = media_rules({});
  EXPECT_EQ(absent.max_images, 1);
  EXPECT_EQ(absent.max_videos, 1);
  EXPECT_EQ(absent.sizes.image, PixelLimits());
  EXPECT_EQ(absent.sizes.video, kVideoPixels);
  EXPECT_EQ(absent.sizes.sampling, VideoSampling());
  MediaOptions options;
  options.limit_per_prompt = R"({"image": 100})";
  options.processor_kwargs =
      R"({"image_max_pixels": 12845056, "video_min_pixels": 1000, "video_max_frames": 30, "video_fps": 0.5})";
  const MediaRules given = media_rules(options);
  EXPECT_EQ(given.max_images, 100);
  EXPECT_EQ(given.max_videos, 1) << "1 of a kind that is not named";
  EXPECT_EQ(given.sizes.image.max_pixels, 12'845'056);
  EXPECT_EQ(given.sizes.video.min_pixels, 1000);
  EXPECT_EQ(given.sizes.sampling, (VideoSampling{0.5, 16, 30, -1, FrameChoice::leading}));
}

TEST(JsonFlags, ReadingOneKey) {
  EXPECT_TRUE(json_flag(R"({"a": true})", "a"));
  EXPECT_FALSE(json_flag(R"({"a": 1})", "a"));
  EXPECT_TRUE(json_has(R"({"a": 1})", "a"));
  EXPECT_FALSE(json_has("", "a"));
}

}  // namespace
}  // namespace troupe::config
