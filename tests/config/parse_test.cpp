#include "config/parse.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "config/dump.h"
#include "config/parsed_words.h"
#include "support/temp_directory.h"

namespace troupe::config {
namespace {

std::vector<std::string> warnings(const Words& words, const Environment& environment = {}) {
  Result<ParsedOptions> result = parse(words, environment);
  EXPECT_TRUE(result.ok()) << result.status().message;
  return result.ok() ? result->warnings : std::vector<std::string>{};
}

TEST(Parse, DefaultsAreThoseOfTheStructs) {
  const Options o = parsed({});
  EXPECT_EQ(o.http.host, "127.0.0.1");
  EXPECT_EQ(o.http.port, 8180);
  EXPECT_FALSE(o.http.metrics_port);
  EXPECT_EQ(o.scheduler.block_size, 64);
  EXPECT_EQ(o.process.max_restarts, 3);
  EXPECT_EQ(o.process.restart_window_s, 60);
  EXPECT_EQ(o.log.dir, "log");
  EXPECT_EQ(o.limits.max_stop_strings, 16);
  EXPECT_TRUE(warnings({}).empty());
}

TEST(Parse, EveryWayToWriteAFlag) {
  EXPECT_EQ(parsed({"--max-num-seqs", "7"}).scheduler.max_num_seqs, 7);
  EXPECT_EQ(parsed({"--max-num-seqs=7"}).scheduler.max_num_seqs, 7);
  EXPECT_EQ(parsed({"--max_num_seqs", "7"}).scheduler.max_num_seqs, 7);
  EXPECT_EQ(parsed({"--max_num_seqs=7", "--max-num-seqs", "8"}).scheduler.max_num_seqs, 8);
  EXPECT_TRUE(parsed({"--log-console"}).log.console);
  EXPECT_FALSE(parsed({"--log-console", "--no-log-console"}).log.console);
  EXPECT_FALSE(parsed({"--log-console=false"}).log.console);
  EXPECT_FALSE(parsed({"--log-console", "False"}).log.console);
  EXPECT_EQ(parsed({"-tp", "2"}).parallel.tensor_parallel_size, 2);
  EXPECT_EQ(parsed({"-tp=1"}).parallel.tensor_parallel_size, 1);
  EXPECT_EQ(unread_value<int>(parsed({"--max-waiting-time", "-1"}).unread, "max-waiting-time"), -1);
  EXPECT_EQ(parsed({"--seed", "-5"}).model.seed, -5);
  EXPECT_FALSE(unread_value<bool>(parsed({"--lm_head-fp32=false"}).unread, "lm-head-fp32"));
}

TEST(Parse, ListsAreRepeatedOrSeparatedByCommas) {
  const Words expected = {"a", "b", "c"};
  EXPECT_EQ(parsed({"--api-key", "a", "--api-key", "b,c"}).http.api_keys, expected);
  EXPECT_EQ(parsed({"--api-key", "a", "b", "c", "--port", "81"}).http.api_keys, expected);
  EXPECT_EQ(parsed({"--engine-worker-queue-port", "8182"}).process.engine_worker_queue_ports,
            std::vector<int>{8182});
  EXPECT_NE(option_error({"--api-key", "a,,b"}).find("--api-key"), std::string::npos);
}

TEST(Parse, QueuePortsOfSeveralRanks) {
  const std::vector<std::string> two = {"--device", "cpu", "-tp", "2", "--engine-worker-queue-port"};
  const auto with = [&two](const std::string& ports) {
    std::vector<std::string> words = two;
    words.push_back(ports);
    return words;
  };
  EXPECT_EQ(parsed(with("8182,8190")).process.engine_worker_queue_ports, (std::vector<int>{8182, 8190}));
  EXPECT_EQ(parsed(with("8182")).process.engine_worker_queue_ports, std::vector<int>{8182});
  EXPECT_NE(
      option_error(with("8182,8183,8184")).find("--engine-worker-queue-port: got 3 ports, expected 1 or 2"),
      std::string::npos);
  EXPECT_NE(
      option_error({"--cache-queue-port", "8182,8183"}).find("--cache-queue-port: got 2 ports, expected 1:"),
      std::string::npos);
  EXPECT_NE(option_error(with("8182,8182")).find("which --engine-worker-queue-port has already"),
            std::string::npos);
}

TEST(Parse, SeveralEngines) {
  const auto options =
      parsed({"--device", "cpu", "-dp", "2", "-tp", "2", "--engine-worker-queue-port", "8182,8190",
              "--cache-queue-port", "1,2,3,4", "--routing-policy", "round-robin"});
  EXPECT_EQ(options.parallel.workers(), 4);
  EXPECT_EQ(options.parallel.routing, RoutingPolicy::round_robin);
  EXPECT_EQ(parsed({}).parallel.routing, RoutingPolicy::cache);
  option_error({"--data-parallel-size", "0"});
  option_error({"--data-parallel-size", "33"});
  EXPECT_EQ(option_error({"-dp", "2", "-tp", "2", "--cache-queue-port", "1,2,3"}),
            "--cache-queue-port: got 3 ports, expected 1 or 2 or 4: one for each engine of "
            "--data-parallel-size, or one for "
            "each of their ranks");
  EXPECT_EQ(option_error({"-dp", "2", "--cache-queue-port", "1,2,3"}),
            "--cache-queue-port: got 3 ports, expected 1 or 2: one for each engine of --data-parallel-size");
  EXPECT_EQ(option_error({"-dp", "2", "-tp", "2", "--enable-expert-parallel"}),
            "--enable-expert-parallel: cannot be used with --data-parallel-size 2: experts spread over "
            "several engines "
            "would make them run the same steps, and each engine here runs its own");
}

TEST(Parse, SeveralRanks) {
  EXPECT_EQ(parsed({"--device", "cpu", "-tp", "4", "--enable-expert-parallel"}).parallel.tensor_parallel_size,
            4);
  EXPECT_EQ(parsed({"--device", "cuda", "-tp", "2"}).parallel.tensor_parallel_size, 2);
  option_error({"-tp", "0"});
  option_error({"-tp", "33"});
  EXPECT_EQ(parsed({"-tp", "2", "--ranks-per-gpu", "2"}).parallel.gpu_of(1), 0);
}

TEST(Parse, DevicesOfRanks) {
  EXPECT_EQ(parsed({"-tp", "4", "--rank-devices", "0,0,1,1"}).parallel.gpu_of(2), 1);
  EXPECT_EQ(parsed({"-tp", "2", "-dp", "2", "--rank-devices", "0,1,1,0"}).parallel.gpu_of(2), 1);
  EXPECT_EQ(option_error({"-tp", "4", "--rank-devices", "0,0,0"}),
            "--rank-devices: got 0,0,0, expected 4 devices separated by commas, one for each rank of "
            "--tensor-parallel-size");
  EXPECT_EQ(option_error({"-tp", "2", "-dp", "2", "--rank-devices", "0,0"}),
            "--rank-devices: got 0,0, expected 4 devices separated by commas, one for each rank of "
            "--tensor-parallel-size of each engine");
  EXPECT_EQ(
      option_error({"-tp", "2", "--rank-devices", "0,0", "--ranks-per-gpu", "2"}),
      "--rank-devices: got 0,0, which cannot be used with --ranks-per-gpu 2: that is a short form of it");
  for (const char* wrong : {"0,x", "0,-1", "0,64", "0,", "cuda:0,cuda:1"}) {
    const std::string error = option_error({"-tp", "2", "--rank-devices", wrong});
    EXPECT_NE(error.find("--rank-devices: got \"" + std::string(wrong) +
                         "\", expected a whole number from 0 to 63, or several separated by commas"),
              std::string::npos)
        << error;
  }
}

TEST(Parse, KeysNeverAppearInMessages) {
  EXPECT_EQ(option_error({"--api-key", "sekret,"}).find("sekret"), std::string::npos);
}

TEST(Parse, AnEmptyKeyIsNoMissingKey) {
  EXPECT_NE(option_error({}, {{"FD_API_KEY", ""}}).find("FD_API_KEY is set, but empty"), std::string::npos);
  EXPECT_NE(option_error({}, {{"TROUPE_API_KEY", ""}}).find("TROUPE_API_KEY is set, but empty"),
            std::string::npos);
  EXPECT_NE(option_error({}, {{"TROUPE_API_KEY_FILE", ""}}).find("TROUPE_API_KEY_FILE is set, but empty"),
            std::string::npos);
  for (const char* flag :
       {"--api-key=", "--api-key= ", "--api-key-file=", "--ssl-certfile=", "--ssl-keyfile="}) {
    const std::string message = option_error({flag});
    EXPECT_NE(message.find(std::string(flag).substr(0, std::string(flag).find('='))), std::string::npos)
        << message;
  }
  EXPECT_NE(option_error({"--ssl-keyfile", "k.pem"}).find("needs --ssl-certfile"), std::string::npos);
}

TEST(Parse, TrustedProxiesAreNetworks) {
  EXPECT_EQ(parsed({"--trusted-proxies", "10.0.0.0/8,::1"}).http.trusted_proxies,
            (Words{"10.0.0.0/8", "::1"}));
  EXPECT_NE(option_error({"--trusted-proxies", "10.0.0.0/8,proxy"}).find("got \"proxy\""), std::string::npos);
}

TEST(Parse, ActorDirectoriesAreCollected) {
  const Options o = parsed({"--actor-log-dir", "scheduler=/a", "--actor-log-dir", "worker-0=/b=c"});
  EXPECT_EQ(o.log.actor_dirs.at("scheduler"), "/a");
  EXPECT_EQ(o.log.actor_dirs.at("worker-0"), "/b=c");
  EXPECT_NE(option_error({"--actor-log-dir", "/a"}).find("NAME=VALUE"), std::string::npos);
  EXPECT_NE(option_error({"--actor-log-dir", "../x=/a"}).find("actor name"), std::string::npos);
}

TEST(Parse, UnitsOfBytesAndRates) {
  EXPECT_EQ(parsed({"--cpu-kv-bytes", "2GiB"}).device.cpu_kv_bytes, 2ll << 30);
  EXPECT_EQ(parsed({"--cpu-kv-bytes", "3 mib"}).device.cpu_kv_bytes, 3ll << 20);
  EXPECT_EQ(parsed({"--cpu-kv-bytes", "77"}).device.cpu_kv_bytes, 77);
  option_error({"--cpu-kv-bytes", "9223372036854775807GiB"});
  option_error({"--cpu-kv-bytes", "-1"});
  option_error({"--cpu-kv-bytes", "GiB"});
  const Options o = parsed({"--max-restarts", "5/120"});
  EXPECT_EQ(o.process.max_restarts, 5);
  EXPECT_EQ(o.process.restart_window_s, 120);
  EXPECT_EQ(parsed({"--max-restarts", "0"}).process.restart_window_s, 60);
  option_error({"--max-restarts", "3/"});
  option_error({"--max-restarts", "3/0"});
}

TEST(Parse, ARequestHasATimeout) {
  EXPECT_EQ(config::Options().limits.request_timeout_s, 3600);
  EXPECT_NE(option_error({"--request-timeout", "0"}).find("--request-timeout: got \"0\""), std::string::npos);
}

TEST(Parse, WrongValuesNameFlagValueAndWhatIsAllowed) {
  EXPECT_EQ(option_error({"--port", "http"}),
            "--port: got \"http\", expected a whole number from 0 to 65535");
  EXPECT_EQ(option_error({"--port", "70000"}),
            "--port: got \"70000\", expected a whole number from 0 to 65535");
  EXPECT_EQ(option_error({"--port", "80x"}), "--port: got \"80x\", expected a whole number from 0 to 65535");
  EXPECT_EQ(option_error({"--dtype", "int8"}),
            "--dtype: got \"int8\", expected auto, bfloat16, float16 or float32");
  EXPECT_NE(option_error({"--gpu-memory-utilization", "1.5"}).find("from 0.01 to 1"), std::string::npos);
  EXPECT_NE(option_error({"--gpu-memory-utilization", "nan"}).find("got \"nan\""), std::string::npos);
  EXPECT_NE(option_error({"--port"}).find("a value is missing"), std::string::npos);
  EXPECT_NE(option_error({"--port", "--host", "x"}).find("a value is missing"), std::string::npos);
  EXPECT_NE(option_error({"model"}).find("unexpected \"model\""), std::string::npos);
  EXPECT_NE(option_error({"--no-log-console=1"}).find("takes no value"), std::string::npos);
}

TEST(Parse, UnknownFlagsGetASuggestion) {
  EXPECT_NE(option_error({"--max-num-seq", "1"}).find("did you mean --max-num-seqs?"), std::string::npos);
  EXPECT_NE(option_error({"--tenser_parallel_size", "1"}).find("did you mean --tensor-parallel-size?"),
            std::string::npos);
  EXPECT_NE(option_error({"--no-log-consle"}).find("did you mean --no-log-console?"), std::string::npos);
  EXPECT_NE(option_error({"--prot", "1"}).find("did you mean --port?"), std::string::npos);
  EXPECT_EQ(option_error({"--zzzzzzzzzz"}).find("did you mean"), std::string::npos);
  EXPECT_NE(option_error({"--no-port"}).find("unknown flag --no-port"), std::string::npos);
  EXPECT_EQ(option_error({"--no-port"}).find("mean --no-port"), std::string::npos)
      << "only a switch has a --no-";
  EXPECT_NE(option_error({"--model-directory", "/x"}).find("unknown flag"), std::string::npos)
      << "a value that the server computes is no flag";
}

TEST(Parse, ParserNamesMayUseUnderscores) {
  EXPECT_EQ(parsed({"--reasoning-parser", "ernie_x1"}).answers.reasoning_parser, "ernie-x1");
  EXPECT_EQ(parsed({"--tool_call_parser", "ernie_45_vl_thinking"}).answers.tool_call_parser,
            "ernie-45-vl-thinking");
  EXPECT_EQ(
      option_error({"--reasoning-parser", "ernie_x2"}),
      "--reasoning-parser: got \"ernie_x2\", expected none, ernie-45-vl, ernie-x1 or ernie-45-vl-thinking");
}

TEST(Parse, AnUnknownParserOrBackendNamesTheKnownOnes) {
  EXPECT_EQ(option_error({"--tool-call-parser", "ernie_x2"}),
            "--tool-call-parser: got \"ernie_x2\", expected none, ernie-x1, ernie-45-vl-thinking or hermes");
  EXPECT_EQ(option_error({"--guided-decoding-backend", "outlines"}),
            "--guided-decoding-backend: got \"outlines\", expected auto, xgrammar or off");
}

TEST(Parse, SwapSpace) {
  EXPECT_EQ(parsed({"--swap-space", "0.5"}).cache.swap_space_gib, 0.5);
  EXPECT_EQ(parsed({"--swap-space", "1", "--swap-path", "/tmp/x"}).cache.swap_path, "/tmp/x");
  option_error({"--swap-space", "-1"});
  option_error({"--swap-space", "nan"});
  EXPECT_NE(option_error({"--swap-path", "/tmp/x"}).find("needs --swap-space above 0"), std::string::npos);
}

TEST(Parse, AllUnavailableFlagsAreRefusedInOneMessage) {
  const std::string message =
      option_error({"--quantization", "w4afp8", "--num-servers", "2", "--router", "127.0.0.1:9000"}, {}, 3);
  EXPECT_NE(message.find("not available yet: --quantization w4afp8: "), std::string::npos);
  EXPECT_NE(message.find("not available yet: --num-servers 2: "), std::string::npos);
  EXPECT_NE(message.find("not available yet: --router 127.0.0.1:9000"), std::string::npos);
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.ends_with("; leave it out") || line.ends_with("; wint8 and wint4 are")) << line;
  }
  EXPECT_NE(option_error({"--guided-decoding-backend", "guidance"}, {}, 3)
                .find("auto, xgrammar and off are available"),
            std::string::npos);
  option_error({"--dynamic-load-weight"}, {}, 3);
  option_error({"--block-size", "128"}, {}, 3);
  parsed({"--runner", "generate", "--convert", "none", "--splitwise-role", "mixed", "--block-size", "64"});
}

TEST(Parse, WhatHasNoMeaningBetweenInstancesOfOneMachineIsHarmless) {
  const auto read =
      parse({"--pd-comm-port", "2334", "--rdma-comm-ports", "7671", "--cache-transfer-protocol", "ipc"}, {});
  ASSERT_TRUE(read.ok()) << read.status().message;
  ASSERT_EQ(read->warnings.size(), 3u);
  for (const std::string& warning : read->warnings) {
    EXPECT_NE(warning.find("go between instances of one machine through shared memory"), warning.npos)
        << warning;
  }
}

TEST(Parse, ParsingDoesNotCheckThatTheDeviceExists) {
  EXPECT_EQ(parsed({"--device", "cuda", "--batch-invariant"}).device.device, Device::cuda);
  EXPECT_TRUE(parsed({"--batch-invariant"}).device.batch_invariant);
  EXPECT_FALSE(parsed({}).device.batch_invariant);
}

TEST(Parse, WrongValuesAreReportedBeforeUnavailableFlags) {
  EXPECT_EQ(option_error({"--quantization", "w4afp8", "--port", "-1"}, {}, 2).find("--port: got "), 0u);
}

TEST(Parse, LimitsOfLogprobs) {
  EXPECT_EQ(parsed({}).limits.max_logprobs, 20);
  EXPECT_EQ(parsed({}).limits.max_completion_logprobs, 20);
  for (const int value : {-1, 0, 21, 1'000'000}) {
    const std::string text = std::to_string(value);
    EXPECT_EQ(parsed({"--max-logprobs", text}).limits.max_logprobs, value);
    EXPECT_EQ(parsed({"--max-completion-logprobs", text}).limits.max_completion_logprobs, value);
  }
  for (const char* flag : {"--max-logprobs", "--max-completion-logprobs"})
    EXPECT_NE(option_error({flag, "-2"}).find("got \"-2\""), std::string::npos);
}

TEST(Parse, ALimitThatNothingCanHoldIsRefused) {
  EXPECT_NE(option_error({"--max-json-depth", "1001"}).find("to 1000"), std::string::npos);
  EXPECT_NE(option_error({"--max-uri-bytes", "57345"}).find("to 57344"), std::string::npos);
  EXPECT_NE(option_error({"--max-logit-bias", "28001"}).find("to 28000"), std::string::npos);
}

TEST(Parse, UnknownSizesOfMediaAreWarnedOf) {
  EXPECT_TRUE(warnings({"--mm-processor-kwargs", R"({"image_max_pixels": 12845056})"}).empty());
  const auto lines = warnings({"--mm-processor-kwargs", R"({"max_dynamic_patch": 4})"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("\"max_dynamic_patch\""), std::string::npos) << lines[0];
}

TEST(Parse, FlagsWithoutEffectGiveOneWarningEach) {
  const auto lines = warnings({"--enable-prefix-caching", "--enable-chunked-prefill", "--enable-logprob",
                               "--use-cudagraph", "--kv-cache-ratio", "0.9"});
  ASSERT_EQ(lines.size(), 1u)
      << "prefix caching, chunked prefill, logprobs and graphs need no warning: they are on";
  EXPECT_EQ(lines[0].find("no effect: --kv-cache-ratio 0.9: "), 0u);
  EXPECT_EQ(warnings({"--no-enable-chunked-prefill"}).size(), 1u);
  EXPECT_TRUE(warnings({"--kv-cache-ratio", "0.75"}).empty());
  EXPECT_TRUE(warnings({"--kv-cache-ratio", "0.9"}, {{"ENABLE_V1_KVCACHE_SCHEDULER", "0"}}).empty());
}

TEST(Parse, HowKvBlocksAreShared) {
  EXPECT_TRUE(parsed({}).scheduler.preempts);
  EXPECT_TRUE(parsed({}, {{"ENABLE_V1_KVCACHE_SCHEDULER", "1"}}).scheduler.preempts);
  const Options o = parsed({"--kv_cache_ratio", "0.9"}, {{"ENABLE_V1_KVCACHE_SCHEDULER", "0"}});
  EXPECT_FALSE(o.scheduler.preempts);
  EXPECT_EQ(o.scheduler.kv_cache_ratio, 0.9);
  EXPECT_FALSE(parsed({"--no-enable-v1-kvcache-scheduler"}).scheduler.preempts);
  parsed({"--kv-cache-ratio", "1"});
  for (const char* absurd : {"-0.1", "0", "1.5", "nan", "three quarters"}) {
    EXPECT_EQ(option_error({"--kv-cache-ratio", absurd}).find("--kv-cache-ratio: got "), 0u) << absurd;
  }
  EXPECT_NE(option_error({"--kv-cache-ratio", "1"}, {{"ENABLE_V1_KVCACHE_SCHEDULER", "0"}})
                .find("answers would have no blocks"),
            std::string::npos);
  EXPECT_EQ(option_error({}, {{"ENABLE_V1_KVCACHE_SCHEDULER", "2"}}).find("ENABLE_V1_KVCACHE_SCHEDULER: "),
            0u);
  for (const char* absurd : {"-1", "0.5", "99999999999"}) {
    EXPECT_EQ(option_error({"--num-gpu-blocks-override", absurd}).find("--num-gpu-blocks-override: got "),
              0u);
  }
  for (const char* size : {"0", "-64", "4097"}) {
    EXPECT_EQ(option_error({"--block-size", size}).find("--block-size: got "), 0u);
  }
  EXPECT_NE(option_error({"--block-size", "32"}, {}, 3).find("KV blocks hold 64 tokens"), std::string::npos);
}

TEST(Parse, TheCommandLineOverridesTheEnvironmentWhichOverridesTheFile) {
  const test::TempDirectory directory;
  const std::string file = directory.path() / "serve.yaml";
  std::ofstream(file) << "port: 1001\nmax_num_seqs: 9\nhost: 0.0.0.0\n";
  const Environment environment = {{"TROUPE_PORT", "1002"}, {"TROUPE_HOST", "::1"}};
  const Options o = parsed({"--config", file, "--port", "1003"}, environment);
  EXPECT_EQ(o.http.port, 1003);
  EXPECT_EQ(o.http.host, "::1");
  EXPECT_EQ(o.scheduler.max_num_seqs, 9);
  EXPECT_EQ(parsed({}, {{"TROUPE_CONFIG", file}}).http.port, 1001);
  EXPECT_EQ(option_error({}, {{"TROUPE_PORT", "x"}}).find("TROUPE_PORT: got \"x\""), 0u);
}

TEST(Parse, FastDeploysVariablesWork) {
  const Options o = parsed({}, {{"FD_LOG_DIR", "prefill_log"},
                                {"FD_API_KEY", "a,b"},
                                {"FD_MODEL_CACHE", "/models"},
                                {"FD_LOG_LEVEL", "DEBUG"},
                                {"FD_LOG_REQUESTS_LEVEL", "2"},
                                {"FD_LOG_MAX_LEN", "100"},
                                {"FD_WORKER_ALIVE_TIMEOUT", "5"}});
  EXPECT_EQ(o.log.dir, "prefill_log");
  EXPECT_EQ(o.http.api_keys, (Words{"a", "b"}));
  EXPECT_EQ(o.model.model_cache, "/models");
  EXPECT_EQ(o.log.level, LogLevel::debug);
  EXPECT_EQ(o.log.request_level, 2);
  EXPECT_EQ(o.log.max_value_bytes, 100);
  EXPECT_EQ(o.process.worker_timeout_s, 5);
  EXPECT_EQ(parsed({}, {{"FD_LOG_DIR", "a"}, {"TROUPE_LOG_DIR", "b"}}).log.dir, "b");
  EXPECT_EQ(parsed({"--api-key", "c"}, {{"FD_API_KEY", "a,b"}}).http.api_keys, (Words{"c"}));
  EXPECT_EQ(parsed({}, {{"FD_API_KEY", "a"}, {"TROUPE_API_KEY", "b"}}).http.api_keys, (Words{"b"}));
  EXPECT_EQ(parsed({}, {{"FD_LOG_DIR", ""}}).log.dir, "log") << "empty means unset";
}

TEST(Parse, OtherDocumentedVariablesAreKnown) {
  const auto lines = warnings({}, {{"FD_SAMPLING_CLASS", "rejection"},
                                   {"ENABLE_V1_KVCACHE_SCHEDULER", "1"},
                                   {"INFERENCE_MSG_QUEUE_ID", "1315"},
                                   {"FD_ATTENTION_BACKEND", "FLASH_ATTN"},
                                   {"CUDA_VISIBLE_DEVICES", "0,1,2,3"},
                                   {"FLAGS_anything", "1"},
                                   {"FD_USE_PHI_RMSNORM", "1"},
                                   {"HOME", "/root"}});
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].find("no effect: FD_ATTENTION_BACKEND=FLASH_ATTN: "), 0u);
  EXPECT_EQ(lines[1].find("no effect: FD_SAMPLING_CLASS=rejection: "), 0u);
  EXPECT_EQ(lines[2].find("no effect: FD_USE_PHI_RMSNORM: "), 0u);
  EXPECT_EQ(lines[3].find("no effect: INFERENCE_MSG_QUEUE_ID=1315: "), 0u);
  EXPECT_NE(option_error({}, {{"ROPE_THETA", "1000"}}, 3).find("ROPE_THETA=1000"), std::string::npos);
  const auto guess = warnings({}, {{"TROUPE_MAX_NUM_SEQ", "1"}});
  ASSERT_EQ(guess.size(), 1u);
  EXPECT_NE(guess[0].find("did you mean TROUPE_MAX_NUM_SEQS?"), std::string::npos);
  EXPECT_TRUE(warnings({}, {{"TROUPE_FOO", "1"}}).empty()) << "only the prefix is alike";
  EXPECT_NE(option_error({}, {{"ROPE_THETA", "1000"}}, 3).find("; unset it"), std::string::npos);
}

TEST(Parse, ValuesOfVariablesMatchedByAWildcardAreNotShown) {
  const auto lines = warnings({}, {{"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer sekret"}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "no effect: OTEL_EXPORTER_OTLP_HEADERS: no traces are sent");
}

TEST(Parse, TextMustBeUtf8) {
  EXPECT_EQ(option_error({"--log-dir", "/x\xff"}).find("--log-dir: "), 0u);
  EXPECT_NE(option_error({}, {{"TROUPE_TOKENIZER", "\xc3"}}).find("--tokenizer: "), std::string::npos);
  EXPECT_NE(option_error({"--actor-log-dir", "a=/\xc0\x80"}).find("UTF-8"), std::string::npos);
  EXPECT_EQ(option_error({"--api-key", "sekret\xff"}).find("sekret"), std::string::npos);
  EXPECT_EQ(parsed({"--log-dir", "/прага"}).log.dir, "/прага");
}

TEST(Parse, RulesBetweenFields) {
  EXPECT_NE(option_error({"--max-model-len", "8"}).find("at least 16"), std::string::npos);
  EXPECT_NE(
      option_error({"--max-num-batched-tokens", "64", "--max-num-seqs", "65"}).find("--max-num-seqs (65)"),
      std::string::npos);
  EXPECT_NE(option_error({"--max-num-batched-tokens", "63"}).find("--block-size (64)"), std::string::npos);
  EXPECT_NE(
      option_error({"--max-num-batched-tokens", "2000", "--max-model-len", "100", "--max-num-seqs", "2"})
          .find("--max-num-seqs (200)"),
      std::string::npos);
  parsed({"--max-num-batched-tokens", "64", "--max-num-seqs", "64"});
  EXPECT_NE(option_error({"--num-gpu-blocks-override", "10", "--max-model-len", "641"})
                .find("less than one sequence"),
            std::string::npos);
  parsed({"--num-gpu-blocks-override", "10", "--max-model-len", "640"});
  EXPECT_NE(option_error({"--port", "8182", "--engine-worker-queue-port", "8182"}).find("--port has already"),
            std::string::npos);
  EXPECT_NE(option_error({"--engine-worker-queue-port", "9", "--cache-queue-port", "9"})
                .find("--engine-worker-queue-port has already"),
            std::string::npos);
  parsed({"--port", "8182", "--metrics-port", "8182"});
  EXPECT_NE(option_error({"--cache-queue-port", "1,2"}).find("got 2 ports, expected 1"), std::string::npos);
  EXPECT_NE(option_error({"--max-num-partial-prefills", "1", "--max-long-partial-prefills", "2"})
                .find("--max-num-partial-prefills (1)"),
            std::string::npos);
  EXPECT_NE(option_error({"--enable-early-stop", "--early-stop-config", R"({"enable_early_stop": false})"})
                .find("contradicts"),
            std::string::npos);
  EXPECT_NE(option_error({"--runtime-dir", "relative"}).find("absolute"), std::string::npos);
}

TEST(Parse, HelpOverridesEveryOtherFlag) {
  EXPECT_EQ(parse({"--help"}, {})->help, "text");
  EXPECT_EQ(parse({"-h"}, {})->help, "text");
  EXPECT_EQ(parse({"--port", "x", "--help"}, {})->help, "text");
  EXPECT_EQ(parse({"--help=markdown"}, {})->help, "markdown");
}

TEST(Parse, TheCacheDirectoryIsTheUsers) {
  EXPECT_EQ(default_cache_dir({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}), "/c/troupe");
  EXPECT_EQ(default_cache_dir({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/h"}}), "/h/.cache/troupe");
  EXPECT_EQ(default_cache_dir({{"XDG_RUNTIME_DIR", "/run/user/7"}}), "/run/user/7/troupe");
}

TEST(Parse, RuntimeDirectory) {
  EXPECT_EQ(parsed({}, {{"XDG_RUNTIME_DIR", "/run/user/7"}}).process.runtime_dir, "/run/user/7/troupe");
  EXPECT_EQ(parsed({}).process.runtime_dir, "/tmp/troupe-" + std::to_string(::getuid()) + "/troupe");
  EXPECT_EQ(parsed({"--runtime-dir", "/x"}).process.runtime_dir, "/x");
}

}  // namespace
}  // namespace troupe::config
