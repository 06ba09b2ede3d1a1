#include "config/config_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "config/parse.h"
#include "support/temp_directory.h"

namespace troupe::config {
namespace {

ParsedOptions from_file(const std::string& text) {
  const test::TempDirectory directory;
  const std::string path = directory.path() / "config_file_test.yaml";
  std::ofstream(path) << text;
  Result<ParsedOptions> result = parse({"--config", path}, {});
  EXPECT_TRUE(result.ok()) << result.status().message;
  return result.ok() ? *result : ParsedOptions{};
}

std::string file_error(const std::string& text) {
  const test::TempDirectory directory;
  const std::string path = directory.path() / "config_file_test.yaml";
  std::ofstream(path) << text;
  Result<ParsedOptions> result = parse({"--config", path}, {});
  EXPECT_FALSE(result.ok());
  return result.status().message;
}

TEST(ConfigFile, Yaml) {
  const ParsedOptions p = from_file(R"(# comment
port: 8188
max_num_seqs: 32
gpu-memory-utilization: 0.9
api-key:
  - one
  - "two"
log-console: true
limit-mm-per-prompt: {image: 10, video: 3}
served-model-name: "8"
metrics-port: null
)");
  EXPECT_EQ(p.options.http.port, 8188);
  EXPECT_EQ(p.options.scheduler.max_num_seqs, 32);
  EXPECT_EQ(p.options.http.api_keys, (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(p.options.log.console);
  EXPECT_EQ(p.options.media.limit_per_prompt, R"({"image":10,"video":3})");
  EXPECT_EQ(p.options.model.served_model_names, std::vector<std::string>{"8"});
  EXPECT_FALSE(p.options.http.metrics_port);
}

TEST(ConfigFile, JsonIsYaml) {
  const ParsedOptions p = from_file(R"({"port": 8188, "actor-log-dir": ["scheduler=/a", "cache=/b"],
    "mm-processor-kwargs": {"image_max_pixels": 12845056, "x": ["1", 1, 1.5, true, null]}})");
  EXPECT_EQ(p.options.http.port, 8188);
  EXPECT_EQ(p.options.log.actor_dirs.size(), 2u);
  EXPECT_EQ(p.options.media.processor_kwargs, R"({"image_max_pixels":12845056,"x":["1",1,1.5,true,null]})");
}

TEST(ConfigFile, ErrorsNameTheFileAndTheOption) {
  EXPECT_NE(file_error("prot: 1\n").find("unknown option prot; did you mean port?"), std::string::npos);
  EXPECT_NE(file_error("port: x\n").find("config_file_test.yaml: port: got \"x\""), std::string::npos);
  EXPECT_NE(file_error("port: [1, 2]\n").find("takes one value"), std::string::npos);
  EXPECT_NE(file_error("- a\n- b\n").find("expected a map"), std::string::npos);
  EXPECT_NE(file_error("a: [1\nb: }\n").find("config_file_test.yaml:"), std::string::npos);
  EXPECT_NE(file_error("config: other.yaml\n").find("cannot be given in a config file"), std::string::npos);
  EXPECT_NE(file_error(std::string(2 << 20, ' ')).find("larger than 1 MiB"), std::string::npos);
  EXPECT_NE(parse({"--config", "/does/not/exist"}, {}).status().message.find("/does/not/exist"),
            std::string::npos);
}

TEST(ConfigFile, AKeyGivenTwiceNamesBothLines) {
  const auto twice = [](const std::string& text, const std::string& message) {
    const std::string got = file_error(text);
    EXPECT_NE(got.find(message), std::string::npos) << got;
  };
  twice("port: 8188\n# two\nport: 8188\n", "config_file_test.yaml:3: port is given twice, in lines 1 and 3");
  twice("max-num-seqs: 3\nmax_num_seqs: 4\n",
        "max_num_seqs, which is also max-num-seqs, is given twice, in lines 1 and 2");
  twice("tensor-parallel-size: 1\nport: 1\ntp: 1\n",
        "tp, which is also tensor-parallel-size, is given twice");
  twice("port: null\nport: 1\n", "in lines 1 and 2");
  twice("api-key: [one]\napi-key: [two]\n", "api-key is given twice");
  twice(R"({"port": 1, "port": 2})", "port is given twice, in lines 1 and 1");
  twice("limit-mm-per-prompt:\n  image: 1\n  image: 2\n",
        "limit-mm-per-prompt: the key image is given twice, in lines 2 and 3");
  twice("mm-processor-kwargs: {a: [{b: 1, b: 2}]}\n", "the key b is given twice");
  const Options repeated = from_file("mm-processor-kwargs: {a: {b: 1}, c: {b: 2}}\n").options;
  EXPECT_EQ(repeated.media.processor_kwargs, R"({"a":{"b":1},"c":{"b":2}})");
  twice("prot: null\n", "unknown option prot");
}

TEST(ConfigFile, RepeatedAnchorsDoNotExplode) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 9; ++j) text += (j ? ", " : "") + before;
    text += "]\n";
  }
  const auto result = parse_config_text(text, "bomb.yaml");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message.find("nested too deeply"), std::string::npos);
}

}  // namespace
}  // namespace troupe::config
