// Ranks that read other weights than the others, or are of another build, are refused by name.
#include "model/ranks/weight_sums.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "model/ranks/rank_memory.h"
#include "model/support/cut_checkpoint.h"
#include "model/support/golden.h"

namespace troupe::model {
namespace {

class WeightSums : public ::testing::Test {
 protected:
  WeightSums() : memory(*create_rank_memory(4)) {
    for (const auto& file : std::filesystem::directory_iterator(test::golden_directory("moe_ranks8")))
      std::filesystem::copy_file(file.path(), directory.path() / file.path().filename());
    options.directory = directory.path().string();
  }
  ~WeightSums() override { ::close(memory); }

  std::string compare(const Shard& shard, const std::string& build = "ours") const {
    const auto files = open_model(options, shard);
    EXPECT_TRUE(files.ok()) << files.status().message;
    return files.ok() ? compare_with_ranks(memory, shard, *files, build).message : "";
  }

  /// Changes the first or the last byte of a tensor in its file.
  void spoil(const std::string& name, bool last) const {
    const auto files = open_model(options);
    ASSERT_TRUE(files.ok());
    const FileTensor* const tensor = files->checkpoint->find(name);
    ASSERT_NE(tensor, nullptr);
    const std::uint64_t at = tensor->offset + (last ? tensor->bytes - 1 : 0);
    std::fstream file(tensor->file->path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const char changed = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(changed);
  }

  test::TempDirectory directory;
  config::ModelOptions options;
  int memory;
};

TEST_F(WeightSums, RanksWithTheSameFilesAgree) {
  for (const bool experts : {false, true}) {
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(compare({rank, 4, experts}), "");
  }
}

TEST_F(WeightSums, ARankThatFindsOtherWeightsIsNamedWithTheTensor) {
  for (const bool last : {false, true}) {
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(compare({rank, 4}), "");
    spoil("model.layers.1.self_attn.o_proj.weight", last);
    const std::string refusal = compare({2, 4});
    EXPECT_EQ(
        refusal.find(
            "Rank 2 of 4 finds other weights in the tensor 'model.layers.1.self_attn.o_proj.weight' of " +
            directory.path().string()),
        0u)
        << refusal;
    EXPECT_NE(
        refusal.find("put the files back that the server was started with, or restart the whole server."),
        std::string::npos)
        << refusal;
    spoil("model.layers.1.self_attn.o_proj.weight", last);
    EXPECT_EQ(compare({2, 4}), "") << "they are back";
  }
}

TEST_F(WeightSums, ExpertsAreComparedByTheRankThatHasThem) {
  const Shard first{0, 4, true}, last{3, 4, true};
  EXPECT_EQ(compare(first), "");
  EXPECT_EQ(compare(last), "");
  spoil("model.layers.2.mlp.experts.60.up_proj.weight", false);
  EXPECT_EQ(compare(first), "");
  EXPECT_NE(compare(last).find("experts.60.up_proj"), std::string::npos);
}

TEST_F(WeightSums, ARankOfAnotherBuildIsNamed) {
  EXPECT_EQ(compare({0, 4}, "seven"), "");
  EXPECT_EQ(
      compare({3, 4}, "eight").find("Rank 3 of 4 is of another build than the ranks that came before it;"),
      0u);
  EXPECT_EQ(compare({3, 4}, "seven"), "");
}

TEST_F(WeightSums, RanksWithFilesOfTheirOwnCompareWithThemselves) {
  const auto whole = open_model(options);
  ASSERT_TRUE(whole.ok());
  test::TempDirectory cut;
  test::cut_for_ranks(*whole, directory.path(), cut.path(), 4);
  options.directory = cut.path().string();
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(compare({rank, 4}), "");
  }
  std::filesystem::copy_file(cut.path() / "rank0" / "model.safetensors",
                             cut.path() / "rank1" / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(compare({1, 4}).find("Rank 1 of 4 finds other weights in the tensor"), 0u);
}

}  // namespace
}  // namespace troupe::model
