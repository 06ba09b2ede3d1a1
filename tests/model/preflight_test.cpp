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
  refused(Code::invalid_argument, "vision_config is missing");
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
  EXPECT_EQ(preflight(options)->formats.activations, DType::f32)
      << "as the tensors are, when the config does not say";
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

TEST_F(PreflightTest, RanksAreSizedByTheFullest) {
  options.model.load_choices = config::LoadChoice::dummy;
  options.parallel.tensor_parallel_size = 2;
  const auto equal = preflight(options);
  ASSERT_TRUE(equal.ok()) << equal.status().message;
  ASSERT_EQ(equal->shares.size(), 2u);
  EXPECT_EQ(equal->shares[0], equal->shares[1]);
  EXPECT_NE(summary(*equal).find("ranks     0, 1: weights "), std::string::npos) << summary(*equal);
  EXPECT_NE(summary(*equal).find("the memory above is each one's\n"), std::string::npos) << summary(*equal);

  edit_config("vocab_size", 288);  // nine panels of 32
  const auto uneven = preflight(options);
  ASSERT_TRUE(uneven.ok()) << uneven.status().message;
  ASSERT_EQ(uneven->shares.size(), 2u);
  EXPECT_EQ(uneven->shares[0].tokens, 128);
  EXPECT_EQ(uneven->shares[1].tokens, 160);
  EXPECT_EQ(uneven->shares[1].weight_bytes - uneven->shares[0].weight_bytes, 32u * 64 * sizeof(float))
      << "rows of 48 numbers take the place of 64";
  EXPECT_EQ(uneven->capacity.weight_bytes, uneven->shares[1].weight_bytes);
  const std::string text = summary(*uneven);
  EXPECT_NE(text.find("ranks     0: weights "), std::string::npos) << text;
  EXPECT_NE(text.find(" 128 tokens of the vocabulary; room for 16 KV blocks\nranks     1: "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("the memory above is that of rank 1, which holds the most\n"), std::string::npos)
      << text;
}

TEST_F(PreflightTest, RanksOfExpertsDifferInTheSharedOnes) {
  fs::copy_file(golden_directory("moe_shared2") / "config.json", path("config.json"),
                fs::copy_options::overwrite_existing);
  edit_config("moe_num_shared_experts", 3);
  options.model.load_choices = config::LoadChoice::dummy;
  options.parallel = {.tensor_parallel_size = 2, .enable_expert_parallel = true};
  const auto checked = preflight(options);
  ASSERT_TRUE(checked.ok()) << checked.status().message;
  EXPECT_EQ(checked->shares[0].shared_experts, 1);
  EXPECT_EQ(checked->shares[1].shared_experts, 2);
  EXPECT_EQ(checked->shard.rank, 1);
  EXPECT_EQ(checked->capacity.weight_bytes, checked->shares[1].weight_bytes);
  EXPECT_GT(checked->shares[1].weight_bytes, checked->shares[0].weight_bytes);
  EXPECT_NE(summary(*checked).find(", 4 experts and 1 shared expert of a layer; room for 16 KV blocks\n"),
            std::string::npos)
      << summary(*checked);
}

TEST_F(PreflightTest, KvBlocksOnGpusAreThoseOfTheFullestRank) {
  options.model.load_choices = config::LoadChoice::dummy;
  options.parallel.tensor_parallel_size = 2;
  options.device.num_gpu_blocks_override = 0;
  edit_config("vocab_size", 288);
  options.device.device = config::Device::cuda;
  GpuProbes probes;
  probes.nccl = [] { return std::string("2.28.9"); };
  std::uint64_t memory = std::uint64_t{8} << 30;
  probes.gpu = [&](int) {
    return CudaProbe{
        .name = "GPU", .free = memory, .total = memory, .capability = 90, .devices = 2, .reaches = 3};
  };
  const auto checked = preflight(options, probes);
  ASSERT_TRUE(checked.ok()) << checked.status().message;
  EXPECT_EQ(checked->capacity.kv_blocks,
            std::min(checked->shares[0].kv_blocks, checked->shares[1].kv_blocks));
  EXPECT_EQ(checked->shard.rank, 1);
  memory = std::uint64_t{256} << 20;
  const auto refused = preflight(options, probes);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message.find("Too little GPU memory"), std::string::npos)
      << refused.status().message;
}

TEST_F(PreflightTest, SpeculationThatIsNotOffered) {
  options.speculation = {.method = config::DraftMethod::ngram, .tokens = 4};
  const auto ngram = preflight(options);
  ASSERT_TRUE(ngram.ok()) << ngram.status().message;
  EXPECT_NE(summary(*ngram).find("\ndrafts    up to 4 tokens behind each sequence's last, from n-grams\n"),
            std::string::npos)
      << summary(*ngram);
  options.speculation = {.method = config::DraftMethod::mtp, .tokens = 1, .mtp_steps = 1};
  refused(Code::invalid_argument, "method \"mtp\" needs a draft layer");
  options.speculation = {.method = config::DraftMethod::ngram, .tokens = 4};
  options.device.device = config::Device::cuda;
  GpuProbes probes;
  probes.gpu = [&](int) {
    return CudaProbe{.name = "GPU", .free = 8ull << 30, .total = 8ull << 30, .capability = 90, .devices = 1};
  };
  for (const config::Device device : {config::Device::cuda, config::Device::automatic}) {
    options.device.device = device;
    const auto on_gpu = preflight(options, probes);
    ASSERT_TRUE(on_gpu.ok()) << on_gpu.status().message;
    EXPECT_EQ(on_gpu->capacity.max_drafts, 4);
  }
  options.speculation = {};
  EXPECT_TRUE(preflight(options, probes).ok());
}

TEST_F(PreflightTest, WhereNoRoleIsAvailable) {
  GpuProbes probes;
  probes.gpu = [&](int) {
    return CudaProbe{.name = "GPU", .free = 8ull << 30, .total = 8ull << 30, .capability = 90, .devices = 1};
  };
  for (const auto& [role, name] :
       {std::pair(config::SplitRole::prefill, "prefill"), std::pair(config::SplitRole::decode, "decode")}) {
    const std::string flag = std::string("--splitwise-role ") + name + ": not available ";
    options.split.role = role;
    for (const config::Device device :
         {config::Device::cpu, config::Device::cuda, config::Device::automatic}) {
      options.device.device = device;
      const auto found = preflight(options, probes);
      EXPECT_TRUE(found.ok()) << found.status().message;
    }
    const config::Options before = options;
    options.remote.listen = "127.0.0.1:1";
    for (const config::Device device : {config::Device::cpu, config::Device::cuda}) {
      options.device.device = device;
      EXPECT_TRUE(preflight(options, probes).ok()) << "across machines";
    }
    options = before;
    options.device.device = config::Device::echo;
    refused(Code::unsupported, flag + "on the echo device, which has no KV memory; --device cpu runs it");
    config::Options sees = options;
    sees.device.device = config::Device::cpu;
    sees.model.tokenizer = sees.model.directory;
    sees.model.directory = golden_directory("vision_small").string();
    const auto found = preflight(sees);
    EXPECT_TRUE(found.ok()) << found.status().message;
    sees.remote.prefill_engines = {"127.0.0.1:1"};
    EXPECT_TRUE(preflight(sees).ok()) << "engines of other machines get what images show";
  }
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
