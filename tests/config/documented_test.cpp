// The command lines and variables of FastDeploy's deployment pages, with `troupe serve` as the program: every
// flag in them must be parsed. A flag that asks for something that Troupe lacks is refused by
// name. The tests state which flags are refused and which values the others were given.
#include <gtest/gtest.h>

#include <sstream>

#include "config/arguments.h"
#include "config/fields.h"
#include "config/parse.h"
#include "config/validate.h"

namespace troupe::config {
namespace {

/// Splits a command line as a shell does: quotes, and backslashes at the ends of lines.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      inside = true;
    } else if (c == '\\' && i + 1 < line.size() && line[i + 1] == '\n') {
      ++i;
    } else if (c == ' ' || c == '\n') {
      if (inside) words.push_back(word);
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (inside) words.push_back(word);
  return words;
}

struct Documented {
  const char* name;
  Environment environment;
  const char* line;
  std::vector<std::string> refused;           ///< how the lines of the error message begin, in any order
  std::map<std::string, std::string> values;  ///< flag to the value that the parsed options hold
};

std::ostream& operator<<(std::ostream& out, const Documented& d) { return out << d.name; }

const Documented kDocumented[] = {
    {"Basic_21B",
     {},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-21B-A3B-Paddle \
       --tensor-parallel-size 1 \
       --quantization wint4 \
       --max-model-len 32768 \
       --max-num-seqs 128)",
     {},
     {{"model", "baidu/ERNIE-4.5-21B-A3B-Paddle"},
      {"tensor-parallel-size", "1"},
      {"quantization", "wint4"},
      {"max-model-len", "32768"},
      {"max-num-seqs", "128"}}},
    {"Basic_21B_cached",
     {{"FD_SAMPLING_CLASS", "rejection"}},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-21B-A3B-Paddle \
       --max-model-len 32768 \
       --max-num-seqs 128 \
       --enable-prefix-caching \
       --swap-space 50 \
       --enable-chunked-prefill \
       --use-cudagraph \
       --speculative-config '{"method": "mtp", "num_speculative_tokens": 1, "model": "${path_to_mtp_model}"}')",
     {},
     {{"enable-prefix-caching", "true"},
      {"swap-space", "50.0"},
      {"enable-chunked-prefill", "true"},
      {"use-cudagraph", "true"},
      {"speculative-config",
       R"({"method": "mtp", "num_speculative_tokens": 1, "model": "${path_to_mtp_model}"})"}}},
    {"Prefill_21B",
     {{"CUDA_VISIBLE_DEVICES", "0,1,2,3"},
      {"INFERENCE_MSG_QUEUE_ID", "1315"},
      {"FD_ATTENTION_BACKEND", "FLASH_ATTN"},
      {"FD_LOG_DIR", "prefill_log"}},
     R"(troupe serve --model baidu/ERNIE-4.5-21B-A3B-Paddle \
    --max-model-len 131072 \
    --max-num-seqs 20 \
    --num-gpu-blocks-override 40000 \
    --quantization block_wise_fp8 \
    --gpu-memory-utilization 0.9 --kv-cache-ratio 0.9 \
    --port 7012 --engine-worker-queue-port 7013 --metrics-port 7014 --tensor-parallel-size 4 \
    --cache-queue-port 7015 \
    --splitwise-role "prefill" \
)",
     {},
     {{"max-model-len", "131072"},
      {"max-num-seqs", "20"},
      {"num-gpu-blocks-override", "40000"},
      {"gpu-memory-utilization", "0.9"},
      {"kv-cache-ratio", "0.9"},
      {"port", "7012"},
      {"engine-worker-queue-port", "7013"},
      {"metrics-port", "7014"},
      {"cache-queue-port", "7015"},
      {"splitwise-role", "prefill"},
      {"log-dir", "prefill_log"}}},
    {"Decode_21B",
     {{"CUDA_VISIBLE_DEVICES", "4,5,6,7"}, {"INFERENCE_MSG_QUEUE_ID", "1215"}, {"FD_LOG_DIR", "decode_log"}},
     R"(troupe serve --model baidu/ERNIE-4.5-21B-A3B-Paddle \
    --max-model-len 131072 \
    --max-num-seqs 20 \
    --quantization block_wise_fp8 \
    --gpu-memory-utilization 0.85 --kv-cache-ratio 0.1 \
    --port 9012 --engine-worker-queue-port 8013 --metrics-port 8014 --tensor-parallel-size 4 \
    --cache-queue-port 8015 \
    --innode-prefill-ports 7013 \
    --splitwise-role "decode")",
     {},
     {{"gpu-memory-utilization", "0.85"},
      {"kv-cache-ratio", "0.1"},
      {"port", "9012"},
      {"engine-worker-queue-port", "8013"},
      {"metrics-port", "8014"},
      {"cache-queue-port", "8015"},
      {"innode-prefill-ports", "7013"},
      {"splitwise-role", "decode"},
      {"log-dir", "decode_log"}}},
    {"Basic_0_3B",
     {},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-0.3B-Paddle \
       --tensor-parallel-size 1 \
       --quantization wint4 \
       --max-model-len 32768 \
       --max-num-seqs 128)",
     {},
     {{"model", "baidu/ERNIE-4.5-0.3B-Paddle"}, {"max-model-len", "32768"}, {"max-num-seqs", "128"}}},
    {"Basic_300B",
     {{"ENABLE_V1_KVCACHE_SCHEDULER", "1"}},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-300B-A47B-Paddle \
       --tensor-parallel-size 8 \
       --quantization wint4 \
       --max-model-len 32768 \
       --kv-cache-ratio 0.75 \
       --max-num-seqs 128)",
     {},
     {{"kv-cache-ratio", "0.75"}, {"tensor-parallel-size", "8"}}},
    {"W4A8C8_300B",
     {},
     R"(troupe serve --model baidu/ERNIE-4.5-300B-A47B-W4A8C8-TP4-Paddle --tensor-parallel-size 4)",
     {},
     {{"model", "baidu/ERNIE-4.5-300B-A47B-W4A8C8-TP4-Paddle"}}},
    {"Prefill_300B",
     {{"FD_LOG_DIR", "log_prefill"}, {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-300B-A47B-Paddle \
       --port 8180 --metrics-port 8181 \
       --engine-worker-queue-port 8182 \
       --cache-queue-port 8183 \
       --tensor-parallel-size 4 \
       --quantization wint4 \
       --splitwise-role "prefill")",
     {},
     {{"port", "8180"},
      {"metrics-port", "8181"},
      {"cache-queue-port", "8183"},
      {"splitwise-role", "prefill"},
      {"log-dir", "log_prefill"}}},
    {"Decode_300B",
     {{"FD_LOG_DIR", "log_decode"}, {"CUDA_VISIBLE_DEVICES", "4,5,6,7"}},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-300B-A47B-Paddle\
       --port 8184 --metrics-port 8185 \
       --engine-worker-queue-port 8186 \
       --cache-queue-port 8187 \
       --tensor-parallel-size 4 \
       --quantization wint4 \
       --innode-prefill-ports 8182 \
       --splitwise-role "decode")",
     {},
     {{"model", "baidu/ERNIE-4.5-300B-A47B-Paddle"},
      {"port", "8184"},
      {"splitwise-role", "decode"},
      {"innode-prefill-ports", "8182"}}},
    {"Thinking_21B",
     {},
     R"(troupe serve \
       --model baidu/ERNIE-4.5-21B-A3B-Thinking \
       --load_choices "default_v1" \
       --tensor-parallel-size 1 \
       --max-model-len 131072 \
       --quantization wint8 \
       --reasoning-parser ernie_x1 \
       --tool-call-parser ernie_x1 \
       --max-num-seqs 32)",
     {},
     {{"load-choices", "default_v1"}, {"reasoning-parser", "ernie-x1"}, {"tool-call-parser", "ernie-x1"}}},
    {"Thinking_VL_one_GPU",
     {},
     R"(troupe serve \
    --model baidu/ERNIE-4.5-VL-28B-A3B-Thinking \
    --port 8180 \
    --metrics-port 8181 \
    --engine-worker-queue-port 8182 \
    --tensor-parallel-size 1 \
    --max-model-len 32768 \
    --max-num-seqs 32 \
    --limit-mm-per-prompt '{"image": 100, "video": 100}' \
    --reasoning-parser ernie-45-vl-thinking \
    --tool-call-parser ernie-45-vl-thinking \
    --mm-processor-kwargs '{"image_max_pixels": 12845056 }'
    --gpu-memory-utilization 0.9 \
    --max-num-batched-tokens 16384 \
    --quantization wint4)",
     {},
     {{"reasoning-parser", "ernie-45-vl-thinking"},
      {"tool-call-parser", "ernie-45-vl-thinking"},
      {"limit-mm-per-prompt", R"({"image": 100, "video": 100})"},
      {"mm-processor-kwargs", R"({"image_max_pixels": 12845056 })"},
      {"max-num-batched-tokens", "16384"},
      {"gpu-memory-utilization", "0.9"}}},
    {"Thinking_VL_two_GPUs",
     {},
     R"(troupe serve \
    --model baidu/ERNIE-4.5-VL-28B-A3B-Thinking \
    --port 8180 \
    --metrics-port 8181 \
    --engine-worker-queue-port 8182 \
    --tensor-parallel-size 2 \
    --max-model-len 131072 \
    --max-num-seqs 128 \
    --limit-mm-per-prompt '{"image": 100, "video": 100}' \
    --reasoning-parser ernie-45-vl-thinking \
    --tool-call-parser ernie-45-vl-thinking \
    --mm-processor-kwargs '{"image_max_pixels": 12845056 }'
    --gpu-memory-utilization 0.9 \
    --max-num-batched-tokens 16384 \
    --quantization wint4)",
     {},
     {{"tensor-parallel-size", "2"}, {"max-num-seqs", "128"}}},
};

class DocumentedTest : public ::testing::TestWithParam<Documented> {};

std::vector<std::string> arguments_of(const Documented& documented) {
  std::vector<std::string> words = words_of(documented.line);
  EXPECT_EQ(words.at(0), "troupe");
  EXPECT_EQ(words.at(1), "serve");
  return {words.begin() + 2, words.end()};
}

TEST_P(DocumentedTest, EveryValueIsReadAsMeant) {
  std::vector<std::string> words = arguments_of(GetParam());
  if (GetParam().environment.contains("FD_LOG_DIR")) {
    words.insert(words.end(), {"--log-dir", GetParam().environment.at("FD_LOG_DIR")});
  }
  Options options;
  const std::vector<Field> all = fields(options);
  const Result<Arguments> read = read_arguments(words, all);
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_TRUE(read->words.empty());
  const Status status = validate(options);
  EXPECT_TRUE(status.ok()) << status.message;
  for (const auto& [flag, value] : GetParam().values) {
    const Field* field = find_field(all, flag);
    ASSERT_NE(field, nullptr) << flag;
    EXPECT_EQ(show_value(*field), value) << flag;
  }
}

TEST_P(DocumentedTest, OnlyUnavailableFlagsAreRefused) {
  const Result<ParsedOptions> result = parse(arguments_of(GetParam()), GetParam().environment);
  if (GetParam().refused.empty()) {
    EXPECT_TRUE(result.ok()) << result.status().message;
    return;
  }
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(exit_code(result.status()), 3) << result.status().message;
  std::istringstream lines(result.status().message);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    bool expected = false;
    for (const std::string& flag : GetParam().refused)
      expected |= line.find("not available yet: " + flag) == 0;
    EXPECT_TRUE(expected) << line;
  }
  EXPECT_EQ(count, GetParam().refused.size()) << result.status().message;
}

TEST_P(DocumentedTest, AcceptedWithoutTheRefusedFlags) {
  // Without the refused flags and their values, the same command line is accepted; warnings are allowed.
  std::vector<std::string> words;
  const std::vector<std::string> all = arguments_of(GetParam());
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool refused = false;
    for (const std::string& flag : GetParam().refused) refused |= flag.starts_with(all[i] + " ");
    if (refused)
      ++i;
    else
      words.push_back(all[i]);
  }
  const Result<ParsedOptions> result = parse(words, GetParam().environment);
  ASSERT_TRUE(result.ok()) << result.status().message;
  for (const std::string& line : result->warnings) EXPECT_EQ(line.find("no effect: "), 0u) << line;
}

INSTANTIATE_TEST_SUITE_P(Pages, DocumentedTest, ::testing::ValuesIn(kDocumented),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace troupe::config
