// Where a draft layer comes from, and what is refused: each with one sentence that names what works instead.
#include "model/checkpoint/draft_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpu/cpu.h"
#include "model/preflight.h"
#include "model/quantised_copy.h"
#include "model/ranks/part.h"
#include "model/support/spoiled_checkpoint.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

using test::golden_directory;
using test::read_text;
using test::TempDirectory;
using test::TestTensor;
using test::write_safetensors;
using test::write_text;

namespace fs = std::filesystem;

/// A copy of a golden model, and the tensors of its draft layer, to be spoiled.
class DraftFiles : public ::testing::Test {
 protected:
  DraftFiles() { take("gqa3_tied"); }

  void take(const std::string& golden) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden_directory(golden) / name, model() / name, fs::copy_options::overwrite_existing);
    }
    draft_ = test::tensors_of(*Checkpoint::open(golden_directory("draft_" + golden)));
    speculation_.method = config::DraftMethod::mtp;
  }
  const fs::path& model() const { return directory_.path(); }
  fs::path own() const { return directory_.path() / "mtp"; }
  void write_own() {
    fs::create_directory(own());
    write_safetensors(own() / "model.safetensors", draft_);
    speculation_.draft_model = own().string();
  }
  void add_to_model() {
    std::vector<TestTensor> all = test::tensors_of(*Checkpoint::open(model()));
    all.insert(all.end(), draft_.begin(), draft_.end());
    write_safetensors(model() / "model.safetensors", all);
  }
  TestTensor& tensor(const std::string& name) {
    return *std::ranges::find_if(draft_, [&](const TestTensor& t) { return t.name == name; });
  }
  void edit_config(const fs::path& file, const char* key, const nlohmann::json& value) {
    nlohmann::json json =
        fs::exists(file) ? nlohmann::json::parse(read_text(file)) : nlohmann::json::object();
    json[key] = value;
    write_text(file, json.dump());
  }

  Result<ModelFiles> open(const Shard& shard = {}) {
    return open_model({.directory = model().string()}, shard, speculation_);
  }
  /// All bytes of the weights in memory.
  std::string loaded(const ModelFiles& files, const WeightFormats& formats) {
    const auto weights = Weights<Cpu>::load(device_, files.spec, formats, files.map);
    EXPECT_TRUE(weights.ok()) << weights.status().message;
    return {static_cast<const char*>(weights->layout().embedding.data), weights->bytes()};
  }
  std::string loaded(const ModelFiles& files) { return loaded(files, files.formats); }

  void refused(const std::vector<std::string>& parts, Code code = Code::invalid_argument) {
    const auto files = open();
    ASSERT_FALSE(files.ok()) << parts.front();
    const std::string& message = files.status().message;
    EXPECT_EQ(files.status().code, code) << message;
    EXPECT_EQ(files.status().param, "speculative-config") << message;
    EXPECT_TRUE(message.starts_with("--speculative-config: ")) << message;
    EXPECT_TRUE(message.ends_with("; method \"ngram\" works with every model.")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  }

  TempDirectory directory_;
  std::vector<TestTensor> draft_;
  config::SpeculationOptions speculation_;
  Cpu device_{{.threads = 2, .pin = false}};
};

TEST_F(DraftFiles, TheModelsOwnTensorsOrThoseOfADirectory) {
  write_own();
  const auto beside = open();
  ASSERT_TRUE(beside.ok()) << beside.status().message;
  EXPECT_EQ(beside->spec.draft_layers, 1);
  const std::string expected = loaded(*beside);  // the files are written anew below
  add_to_model();
  speculation_.draft_model.clear();
  const auto within = open();
  ASSERT_TRUE(within.ok()) << within.status().message;
  EXPECT_TRUE(within->map.skipped.empty());
  EXPECT_TRUE(loaded(*within) == expected);
  // Nobody asks: the tensors are skipped as before.
  speculation_.method = config::DraftMethod::ngram;
  const auto without = open();
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->spec.draft_layers, 0);
  EXPECT_EQ(without->map.skipped.size(), draft_.size());
  EXPECT_LT(loaded(*without).size(), expected.size());
}

TEST_F(DraftFiles, EitherOrientationOfTheProjection) {
  add_to_model();
  const std::string expected = loaded(*open());
  TestTensor& projection = tensor("model.mtp_linear_proj.0.weight");
  const auto rows = static_cast<std::size_t>(projection.shape[0]),
             columns = static_cast<std::size_t>(projection.shape[1]);
  std::string turned(projection.data.size(), 0);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c)
      std::memcpy(&turned[(c * rows + r) * 4], &projection.data[(r * columns + c) * 4], 4);
  }
  projection.data = turned;
  std::swap(projection.shape[0], projection.shape[1]);
  write_own();
  const auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message;
  EXPECT_TRUE(loaded(*files) == expected);
}

TEST_F(DraftFiles, OtherTensorsInTheDirectoryAreNotRead) {
  draft_.push_back({"model.embed_tokens.weight", "F32", {2, 2}, std::string(16, 0)});
  draft_.push_back({"model.mtp_block.0.self_attn.rotary_emb.inv_freq", "F32", {8}, std::string(32, 0)});
  write_own();
  EXPECT_TRUE(open().ok()) << open().status().message;
}

TEST_F(DraftFiles, ModelsWithoutTheLayerAreRefused) {
  refused({model().string(), "has no tensor of one", "model.mtp_linear_proj.0.weight",
           "\"model\" may name a directory"});
  speculation_.draft_model = own().string();
  refused({own().string(), "no directory"}, Code::not_found);
  fs::create_directory(own());
  refused({own().string(), "neither model.safetensors nor"}, Code::not_found);
  write_safetensors(own() / "model.safetensors", {{"model.norm.weight", "F32", {48}, std::string(192, 0)}});
  refused({own().string(), "no tensor of a draft layer"});
}

TEST_F(DraftFiles, IncompleteLayersAreRefused) {
  std::erase_if(draft_,
                [](const TestTensor& t) { return t.name == "model.mtp_block.0.mlp.down_proj.weight"; });
  write_own();
  refused({own().string(), "1 missing tensors: 'model.mtp_block.0.mlp.down_proj.weight'"});
  add_to_model();
  speculation_.draft_model.clear();
  refused({model().string(), "model.mtp_block.0.mlp.down_proj.weight"});
}

TEST_F(DraftFiles, LayersOfOtherModelsAreRefused) {
  TestTensor& projection = tensor("model.mtp_linear_proj.0.weight");
  projection.shape = {96, 48 * 2};
  projection.data.resize(96 * 96 * 4);
  write_own();
  refused({"'model.mtp_linear_proj.0.weight' has the shape [96, 96]; expected is [48, 96]"});
  draft_ = test::tensors_of(*Checkpoint::open(golden_directory("draft_moe_shared2")));
  EXPECT_TRUE((write_own(), open().ok()));  // of the same width
  draft_ = test::tensors_of(*Checkpoint::open(golden_directory("draft_gqa5_untied")));
  write_own();
  refused({own().string(), "does not fit the model", "the shape ["});
  draft_.push_back({"ernie.mtp_emb_norm.1.weight", "BF16", {80}, std::string(160, 0)});
  take("gqa5_untied");
  draft_.push_back({"ernie.mtp_emb_norm.1.weight", "BF16", {80}, std::string(160, 0)});
  write_own();
  refused({"1 unknown tensors: 'ernie.mtp_emb_norm.1.weight'"});
}

TEST_F(DraftFiles, TheDirectorysConfigIsCompared) {
  write_own();
  edit_config(own() / "config.json", "num_hidden_layers", 1);
  edit_config(own() / "config.json", "hidden_size", 48);
  EXPECT_TRUE(open().ok()) << open().status().message;
  edit_config(own() / "config.json", "vocab_size", 999);
  refused({"config.json is of another model", "vocab_size is 999, the model's is 256"});
}

TEST_F(DraftFiles, TwoLayersAreNotOffered) {
  add_to_model();
  edit_config(model() / "config.json", "num_nextn_predict_layers", 2);
  refused({"num_nextn_predict_layers is 2, only 1 is offered"}, Code::unsupported);
}

TEST_F(DraftFiles, VisionModelsHaveNone) {
  speculation_.draft_model.clear();
  const auto files = open_model({.directory = golden_directory("vision_small").string()}, {}, speculation_);
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.status().code, Code::unsupported);
  EXPECT_NE(files.status().message.find("vision-language models"), std::string::npos)
      << files.status().message;
  EXPECT_NE(files.status().message.find("method \"ngram\" works"), std::string::npos);
}

TEST_F(DraftFiles, DummyWeightsFollowTheConfig) {
  config::ModelOptions dummy{.directory = model().string()};
  dummy.load_choices = config::LoadChoice::dummy;
  EXPECT_FALSE(open_model(dummy, {}, speculation_).ok());
  edit_config(model() / "config.json", "num_nextn_predict_layers", 1);
  const auto files = open_model(dummy, {}, speculation_);
  ASSERT_TRUE(files.ok()) << files.status().message;
  EXPECT_EQ(files->spec.draft_layers, 1);
}

TEST_F(DraftFiles, BadFormatsAreRefused) {
  write_own();
  for (const char* method : {"int3", "block_wise_fp8"}) {
    speculation_.quantization = method;
    auto files = open();
    ASSERT_TRUE(files.ok());
    const Status chosen = files->choose(config::Device::cpu, {});
    ASSERT_FALSE(chosen.ok()) << method;
    EXPECT_TRUE(chosen.message.starts_with("--speculative-config: \"quantization\" of the draft layer"))
        << chosen.message;
  }
}

TEST_F(DraftFiles, PreflightCountsTheLayer) {
  write_own();
  write_text(model() / "tokenizer.json", "{}");
  config::Options options;
  options.model.directory = model().string();
  options.device.device = config::Device::cpu;
  options.device.num_gpu_blocks_override = 16;
  const auto without = preflight(options);
  options.speculation = speculation_;
  const auto with = preflight(options);
  ASSERT_TRUE(without.ok() && with.ok()) << with.status().message;
  EXPECT_GT(with->capacity.weight_bytes, without->capacity.weight_bytes);
  EXPECT_GT(with->capacity.arena_bytes, without->capacity.arena_bytes);
  EXPECT_GT(with->block_bytes * 2, without->block_bytes * 3);  // a layer more, and a hidden row
  EXPECT_NE(with->spec_hash, without->spec_hash);
  fs::remove(own() / "model.safetensors");
  EXPECT_FALSE(preflight(options).ok());
}

// A model that is cut for its ranks takes a layer that is whole, or one that is cut like it.
TEST_F(DraftFiles, RanksHoldTheirPart) {
  write_own();
  const auto files = open();
  ASSERT_TRUE(files.ok());
  for (int rank = 0; rank < 2; ++rank) {
    const auto part = part_of(files->spec, {rank, 2, false});
    const auto map = files->map_of({rank, 2, false});
    ASSERT_TRUE(part.ok() && map.ok());
    for (const WeightSource& source : map->sources) {
      if (source.layer != WeightSource::kDraftLayer) continue;
      if (source.weight == Weight::draft_projection) {
        EXPECT_EQ(source.outputs, 48);
        EXPECT_EQ(source.inputs, 96);
      } else if (source.weight == Weight::query) {
        EXPECT_EQ(source.outputs, part->q_width());
      } else if (source.weight == Weight::down) {
        EXPECT_EQ(source.inputs, 40);
      }
    }
  }
}

TEST_F(DraftFiles, QuantisedCopiesHaveTheLayer) {
  for (const char* golden : {"gqa3_tied", "moe_shared2"}) {
    for (const char* method : {"wint8", "wint4"}) {
      SCOPED_TRACE(std::string(golden) + " " + method);
      take(golden);
      add_to_model();
      speculation_.draft_model.clear();
      auto files = open();
      ASSERT_TRUE(files.ok()) << files.status().message;
      ASSERT_TRUE(files->choose(config::Device::cpu, {.method = method}).ok());
      const TempDirectory copies;
      const fs::path copy = copies.path() / "copy";
      const Status written = write_quantised_copy(*files, {model(), "config.json", copy});
      ASSERT_TRUE(written.ok()) << written.message;
      auto copied = open_model({.directory = copy.string()}, {}, speculation_);
      ASSERT_TRUE(copied.ok()) << copied.status().message;
      const Status chosen = copied->choose(config::Device::cpu, {});
      ASSERT_TRUE(chosen.ok()) << chosen.message;
      EXPECT_EQ(copied->formats, files->formats);
      EXPECT_TRUE(loaded(*copied) == loaded(*files));
      speculation_.quantization = "wint8";
      copied = open_model({.directory = copy.string()}, {}, speculation_);
      const Status again = copied->choose(config::Device::cpu, {});
      EXPECT_NE(again.message.find("quantised already"), std::string::npos) << again.message;
      speculation_.quantization.clear();
    }
  }
}

// The layer of a model whose checkpoint is quantised may be in more bits.
TEST_F(DraftFiles, AQuantisedModelWithAPlainLayer) {
  auto files = open_model({.directory = model().string()});
  ASSERT_TRUE(files.ok() && files->choose(config::Device::cpu, {.method = "wint8"}).ok());
  const TempDirectory copies;
  const fs::path copy = copies.path() / "copy";
  ASSERT_TRUE(write_quantised_copy(*files, {model(), "config.json", copy}).ok());
  write_own();
  for (const char* quantization : {"", "wint4"}) {
    speculation_.quantization = quantization;
    auto opened = open_model({.directory = copy.string()}, {}, speculation_);
    ASSERT_TRUE(opened.ok()) << opened.status().message;
    const Status chosen = opened->choose(config::Device::cpu, {});
    ASSERT_TRUE(chosen.ok()) << chosen.message;
    EXPECT_EQ(opened->formats.draft.quantised(), *quantization != 0);
    EXPECT_TRUE(opened->formats.attention.quantised());
    EXPECT_FALSE(loaded(*opened).empty());
  }
}

}  // namespace
}  // namespace troupe::model
