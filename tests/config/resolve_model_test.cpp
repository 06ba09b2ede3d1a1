#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "config/parse.h"
#include "config/validate.h"

namespace troupe::config {
namespace {

namespace fs = std::filesystem;

class ResolveModel : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("resolve_model_" + std::to_string(::getpid()));
    add("cache/baidu/ERNIE-4.5-0.3B-PT");
    add(std::string("bin/models/") + kDemoModel);
    fs::create_directories(root_ / "empty");
    root_ = fs::canonical(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void add(const std::string& directory) {
    fs::create_directories(root_ / directory);
    std::ofstream(root_ / directory / "config.json") << "{}";
  }
  Status resolve(const std::string& name, Device device = Device::cpu) {
    model_.model = name;
    return resolve_model(model_, device, (root_ / "bin/troupe").string());
  }

  fs::path root_;
  ModelOptions model_;
};

TEST_F(ResolveModel, PathThenCacheThenError) {
  const std::string name = "baidu/ERNIE-4.5-0.3B-PT";
  Status status = resolve(name);
  EXPECT_EQ(status.code, Code::not_found);
  EXPECT_EQ(exit_code(status), 2);
  EXPECT_NE(status.message.find("FD_MODEL_CACHE is not set"), std::string::npos);
  EXPECT_NE(status.message.find("troupe pull " + name), std::string::npos);
  model_.model_cache = (root_ / "cache").string();
  ASSERT_TRUE(resolve(name).ok());
  EXPECT_EQ(model_.directory, (root_ / "cache" / name).string());
  ASSERT_TRUE(resolve((root_ / "cache" / name).string()).ok());
  EXPECT_EQ(resolve("/no/such").message, "--model: there is no directory /no/such");
}

TEST_F(ResolveModel, TheDemoModelIsFoundBesideTheExecutable) {
  ASSERT_TRUE(resolve("").ok());
  EXPECT_EQ(model_.directory, (root_ / "bin/models" / kDemoModel).string());
  fs::remove_all(root_ / "bin/models");
  EXPECT_NE(resolve("").message.find("tools/quickstart"), std::string::npos);
  EXPECT_TRUE(resolve("", Device::echo).ok()) << "echo needs no model";
}

TEST_F(ResolveModel, ErrorsSayWhyAPathIsNoCheckpoint) {
  EXPECT_NE(resolve((root_ / "empty").string()).message.find("holds no config.json"), std::string::npos);
  EXPECT_NE(resolve((root_ / "cache/baidu/ERNIE-4.5-0.3B-PT/config.json").string()).message.find("is a file"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe::config
