// What is refused before a start, each with one sentence that names what is wrong.
#include "model/preflight.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/make_executor.h"
#include "model/support/files.h"

namespace troupe::model {
namespace {

using test::golden_directory;
using test::read_text;
using test::TempDirectory;
using test::TestTensor;
using test::write_text;

namespace fs = std::filesystem;

// A sound model directory, to be spoiled.
class PreflightTest : public ::testing::Test {
 protected:
  PreflightTest() {
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden_directory("gqa3_tied") / name, path(name));
    }
    write_text(path("tokenizer.json"), "{}");
    options.model.directory = directory.path().string();
    options.device.device = config::Device::cpu;
    options.device.num_gpu_blocks_override = 16;
  }
  fs::path path(const std::string& name) const { return directory.path() / name; }

  void edit_config(const char* key, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(read_text(path("config.json")));
    json[key] = value;
    write_text(path("config.json"), json.dump());
  }
  void refused(Code code, const std::string& part) {
    const auto checked = preflight(options);
    ASSERT_FALSE(checked.ok()) << part;
    EXPECT_EQ(checked.status().code, code) << checked.status().message;
    EXPECT_NE(checked.status().message.find(part), std::string::npos) << checked.status().message;
    EXPECT_EQ(checked.status().message.find('\n'), std::string::npos);
  }

  TempDirectory directory;
  config::Options options;
};

TEST_F(PreflightTest, ASoundModelFits) {
  const auto checked = preflight(options);
  ASSERT_TRUE(checked.ok()) << checked.status().message;
  EXPECT_EQ(checked->device, config::Device::cpu);
  EXPECT_EQ(checked->formats.activations, DType::f32);
  EXPECT_EQ(checked->capacity.max_model_len, 512);
  EXPECT_EQ(checked->capacity.max_slots, 32);
  EXPECT_EQ(checked->capacity.max_tokens_per_step, 512);
  EXPECT_EQ(checked->capacity.kv_blocks, 16);
  EXPECT_EQ(checked->sequences_at_full_length, 2);
  EXPECT_GT(checked->available_bytes, 0u);
  EXPECT_EQ(checked->spec_hash, *model_spec_hash(options));
  const std::string text = summary(*checked);
  EXPECT_NE(text.find("16 blocks of 64 tokens, 1024 tokens"), std::string::npos) << text;
}

TEST_F(PreflightTest, TheWorkerAgrees) {
  options.device.cpu_threads = 1;
  const auto executor = make_executor(options);
  ASSERT_TRUE(executor.ok()) << executor.status().message;
  EXPECT_EQ((*executor)->capacity().kv_blocks, preflight(options)->capacity.kv_blocks);
  EXPECT_NE((*executor)->device().find("cpu"), std::string::npos);
}

TEST_F(PreflightTest, DirectoriesThatAreNone) {
  options.model.directory = path("nowhere").string();
  refused(Code::not_found, "does not exist");
  options.model.directory = path("config.json").string();
  refused(Code::invalid_argument, "not a directory");
  fs::create_directory(path("empty"));
  options.model.directory = path("empty").string();
  refused(Code::invalid_argument, "is empty");
  options.model.directory.clear();
  refused(Code::invalid_argument, "No model");
}

TEST_F(PreflightTest, MissingFiles) {
  write_text(path("README.md"), "a directory that is not empty");
  fs::remove(path("tokenizer.json"));
  refused(Code::not_found, "tokenizer.model");
  fs::remove(path("model.safetensors"));
  refused(Code::not_found, "model.safetensors");
  fs::remove(path("config.json"));
  refused(Code::not_found, "config.json");
}

TEST_F(PreflightTest, AnotherArchitecture) {
  edit_config("architectures", {"LlamaForCausalLM"});
  refused(Code::invalid_argument, "LlamaForCausalLM");
  edit_config("architectures", {"Ernie4_5_VLMoeForConditionalGeneration"});
  refused(Code::unsupported, "not available yet");
}

TEST_F(PreflightTest, SpoiledConfigs) {
  write_text(path("config.json"), "{\"hidden_size\": ");
  refused(Code::invalid_argument, "not valid JSON");
  write_text(path("config.json"), "");
  refused(Code::invalid_argument, "empty");
}

TEST_F(PreflightTest, SpoiledGenerationConfigs) {
  const auto with = [&](const std::string& text, const std::string& part) {
    write_text(path("generation_config.json"), text);
    refused(Code::invalid_argument, "generation_config.json");
    refused(Code::invalid_argument, part);
  };
  const int vocab = read_spec(directory.path())->vocab;
  with("{\"temperature\": \"hot\"}", "temperature is \"hot\"");
  with("{\"eos_token_id\": [1, " + std::to_string(vocab) + "]}",
       "eos_token_id names " + std::to_string(vocab));
  with(nlohmann::json{{"eos_token_id", std::vector<int>(65, 1)}}.dump(), "up to 64");
  write_text(path("generation_config.json"), "{\"eos_token_id\": " + std::to_string(vocab - 1) + "}");
  EXPECT_TRUE(preflight(options).ok());
  options.device.device = config::Device::echo;
  with("{\"eos_token_id\": " + std::to_string(vocab) + "}", "allowed are ids below");
}

TEST_F(PreflightTest, SpoiledCheckpoints) {
  const std::string good = read_text(path("model.safetensors"));
  write_text(path("model.safetensors"), good.substr(0, good.size() - 1000));
  refused(Code::invalid_argument, "truncated");
  write_text(path("model.safetensors"), good.substr(0, 100));
  refused(Code::invalid_argument, "truncated");
  write_text(path("model.safetensors"), "");
  refused(Code::invalid_argument, "truncated");
  std::string corrupt = good;
  corrupt[20] = '\x01';
  write_text(path("model.safetensors"), corrupt);
  refused(Code::invalid_argument, "corrupt header");
  write_text(path("model.safetensors"), std::string(1000, '\xff'));
  refused(Code::invalid_argument, "corrupt header");
}

TEST_F(PreflightTest, TensorsThatDoNotFitTheConfig) {
  std::vector<TestTensor> tensors = test::tensors_of(*Checkpoint::open(directory.path()));
  const auto spoil = [&](auto change, const std::string& part) {
    std::vector<TestTensor> changed = tensors;
    change(changed);
    test::write_safetensors(path("model.safetensors"), changed);
    refused(Code::invalid_argument, part);
  };
  spoil([](auto& t) { t.erase(t.begin()); }, "missing tensors: 'model.embed_tokens.weight'");
  spoil([](auto& t) { t.push_back({"model.extra", "U8", {1}, "x"}); }, "unknown tensors: 'model.extra'");
  spoil([](auto& t) { std::swap(t[0].shape[0], t[0].shape[1]); },
        "'model.embed_tokens.weight' has the shape");
}

TEST_F(PreflightTest, Shards) {
  fs::rename(path("model.safetensors"), path("model-00001-of-00002.safetensors"));
  nlohmann::json map;
  for (const TestTensor& t :
       test::tensors_of(*Checkpoint::open_file(path("model-00001-of-00002.safetensors")))) {
    map[t.name] = "model-00001-of-00002.safetensors";
  }
  const auto write_index = [&] {
    write_text(path("model.safetensors.index.json"), nlohmann::json{{"weight_map", map}}.dump());
  };
  write_index();
  EXPECT_TRUE(preflight(options).ok());
  map["model.norm.weight"] = "model-00002-of-00002.safetensors";
  write_index();
  refused(Code::not_found, "model-00002-of-00002.safetensors");
  map["model.norm.weight"] = "../model-00001-of-00002.safetensors";
  write_index();
  refused(Code::invalid_argument, "plain file name");
}

TEST_F(PreflightTest, DummyWeightsNeedNoCheckpoint) {
  fs::remove(path("model.safetensors"));
  options.model.load_choices = config::LoadChoice::dummy;
  EXPECT_TRUE(preflight(options).ok());
}

TEST_F(PreflightTest, TypesCanBeChosen) {
  options.model.dtype = config::DTypeOption::bfloat16;
  EXPECT_EQ(preflight(options)->formats.activations, DType::bf16);
  nlohmann::json json = nlohmann::json::parse(read_text(path("config.json")));
  json.erase("torch_dtype");
  write_text(path("config.json"), json.dump());
  options.model.dtype = config::DTypeOption::automatic;
  EXPECT_EQ(preflight(options)->formats.activations, DType::f32) << "as the tensors are, when the config does not say";
}

TEST_F(PreflightTest, WithoutAGpuCudaIsRefusedAndAutoIsTheCpu) {
  const Status usable = cuda_usable();
  if (usable.ok()) GTEST_SKIP() << "there is a GPU";
  options.device.device = config::Device::cuda;
  refused(Code::unsupported, usable.message);
  const auto executor = make_executor(options);
  ASSERT_FALSE(executor.ok());
  EXPECT_EQ(executor.status().message, usable.message);
  options.device.device = config::Device::automatic;
  EXPECT_EQ(preflight(options)->device, config::Device::cpu);
}

TEST_F(PreflightTest, WithAGpuAutoIsCuda) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  options.device.device = config::Device::automatic;
  const auto checked = preflight(options);
  ASSERT_TRUE(checked.ok()) << checked.status().message;
  EXPECT_EQ(checked->device, config::Device::cuda);
  EXPECT_EQ(checked->capacity.max_slots, 32) << "as few blocks as there are serve no more";
  EXPECT_EQ(checked->capacity.max_tokens_per_step, 8192);
  EXPECT_EQ(checked->capacity.kv_blocks, 16);
}

TEST_F(PreflightTest, EchoNeedsNoModel) {
  options.device = {.device = config::Device::echo};
  options.model = {};
  options.scheduler.max_model_len = 1000;
  const auto checked = preflight(options);
  ASSERT_TRUE(checked.ok()) << checked.status().message;
  EXPECT_EQ(checked->spec_hash, 0u);
  EXPECT_EQ(checked->capacity.max_model_len, 1000);
  EXPECT_EQ(checked->sequences_at_full_length, 32);
  EXPECT_TRUE(make_executor(options).ok());
}

}  // namespace
}  // namespace troupe::model
