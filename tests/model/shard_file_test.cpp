// Files of a checkpoint that change or fail while they are read: a sentence, and no signal.
#include "model/checkpoint/shard_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "gpu/cpu.h"
#include "model/checkpoint/model_files.h"
#include "model/checkpoint/read_ahead.h"
#include "model/support/files.h"
#include "model/weights.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;
using test::TempDirectory;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ShardFileTest, ReadsAtAnyOffset) {
  const TempDirectory directory;
  test::write_text(directory.path() / "shard", "0123456789");
  const auto file = ShardFile::open(directory.path() / "shard");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->bytes(), 10u);
  std::string got(4, '-');
  (*file)->read(3, got.data(), got.size());
  EXPECT_EQ(got, "3456");
  EXPECT_TRUE((*file)->status().ok());
}

TEST(ShardFileTest, ATruncationIsASentenceThatNamesAllNumbers) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "shard";
  test::write_text(path, std::string(100'000, 'x'));
  const auto file = ShardFile::open(path);
  ASSERT_TRUE(file.ok());
  fs::resize_file(path, 50'000);
  std::string got(20'000, '-');
  (*file)->read(40'000, got.data(), got.size());
  EXPECT_EQ(got, std::string(10'000, 'x') + std::string(10'000, '\0'));
  const Status status = (*file)->status();
  ASSERT_FALSE(status.ok());
  for (const char* part : {"shard was truncated", "50000 to 60000", "had 100000", "has 50000 now"})
    EXPECT_TRUE(contains(status.message, part)) << part << ": " << status.message;
  (*file)->read(90'000, got.data(), 10);
  EXPECT_EQ((*file)->status().message, status.message) << "the first failure stays";
}

TEST(ShardFileTest, WhatIsNoFileIsRefused) {
  const TempDirectory directory;
  EXPECT_EQ(ShardFile::open(directory.path() / "absent").status().code, Code::not_found);
  EXPECT_TRUE(contains(ShardFile::open(directory.path()).status().message, "is not a file"));
}

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : fs::directory_iterator(test::golden_directory("gqa3_tied")))
      fs::copy(entry.path(), directory.path());
    shard = directory.path() / "model.safetensors";
  }

  const TempDirectory directory;
  fs::path shard;
};

TEST_F(LoadTest, ACheckpointThatIsTruncatedAfterItWasOpenedIsAnError) {
  auto files = open_model({.directory = directory.path().string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  const auto size = fs::file_size(shard);
  fs::resize_file(shard, size - size / 4);
  Cpu device({.threads = 2, .pin = false});
  const auto weights = Weights<Cpu>::load(device, files->spec, files->dtype, files->map);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code, Code::invalid_argument);
  for (const std::string& part : {shard.string(), std::string("was truncated"), std::to_string(size)})
    EXPECT_TRUE(contains(weights.status().message, part)) << part << ": " << weights.status().message;
}

TEST_F(LoadTest, ReadingAheadStaysAheadByWhatItMay) {
  const auto files = open_model({.directory = directory.path().string()});
  ASSERT_TRUE(files.ok());
  const std::size_t sources = files->map.sources.size();
  const auto wait_for = [&](const ReadAhead& ahead, std::size_t asked) {
    const TimePoint give_up = Clock::now() + troupe::test::kPatience;
    while (ahead.asked() < asked && Clock::now() < give_up) std::this_thread::yield();
    return ahead.asked();
  };
  // One byte ahead: each source is asked for when the one before it is reached.
  ReadAhead ahead(files->map, 1);
  EXPECT_EQ(wait_for(ahead, 1), 1u);
  ahead.reached(1);
  EXPECT_EQ(wait_for(ahead, 2), 2u);
  ahead.reached(sources - 1);
  EXPECT_EQ(wait_for(ahead, sources), sources);
  const ReadAhead all(files->map);
  EXPECT_EQ(wait_for(all, sources), sources);
}

}  // namespace
}  // namespace troupe::model
