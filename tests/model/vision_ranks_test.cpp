// A vision-language model on several ranks, each a thread with a device of its own, compared with
// transformers.
#include <unistd.h>

#include <thread>

#include "model/support/vision_model.h"
#include "model/support/vision_twin.h"

namespace troupe::model {
namespace {

using test::VisionGolden, test::VisionModel;

struct Way {
  int ranks;
  bool expert_parallel;
};

/// What a rank makes of the prompts.
struct Seen {
  std::vector<float> embeddings, logits;
};

class VisionRanks : public ::testing::TestWithParam<std::tuple<const char*, Way, DType>> {};

TEST_P(VisionRanks, EveryRankHasTheReferencesLogits) {
  const auto [golden_name, way, dtype] = GetParam();
  const double tolerance = test::kTolerance[static_cast<int>(dtype)];
  test::TempDirectory directory;
  test::write_vision_twin(golden_name, directory.path());
  const auto files = open_model({.directory = directory.path().string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  for (int rank = 0; rank < way.ranks; ++rank) {
    const Status fits = check_ranks(*files, {rank, way.ranks, way.expert_parallel});
    ASSERT_TRUE(fits.ok()) << fits.message;
  }
  for (const char* prompt : {"mixed", "long", "text"}) {
    SCOPED_TRACE(prompt);
    const VisionGolden golden = test::load_vision_golden(prompt);
    const int tokens = static_cast<int>(golden.ids.size());
    const auto memory = create_rank_memory(way.ranks);
    ASSERT_TRUE(memory.ok());
    std::vector<Seen> whole(static_cast<std::size_t>(way.ranks)), cut(whole);
    {
      std::vector<std::jthread> ranks;
      for (std::size_t r = 0; r < whole.size(); ++r) {
        ranks.emplace_back([&, r, dtype = dtype, way = way] {
          Cpu device({.threads = 1, .pin = false});
          const Shard shard{static_cast<int>(r), way.ranks, way.expert_parallel};
          auto collective = Collective<Cpu>::attach(*memory, shard);
          ASSERT_TRUE(collective.ok());
          VisionModel model(device, *files, dtype, shard, collective->get());
          model.encode(golden);
          whole[r] = {model.embeddings(golden), model.logits(golden, golden.ids, 0, tokens)};
          for (int first = 0; first < tokens; first += 7) {
            const auto some = model.logits(golden, golden.ids, first, std::min(7, tokens - first));
            cut[r].logits.insert(cut[r].logits.end(), some.begin(), some.end());
          }
        });
      }
    }
    ::close(*memory);
    EXPECT_LE(test::relative_error(whole[0].logits, golden.logits), tolerance);
    for (std::size_t r = 0; r < whole.size(); ++r) {
      EXPECT_EQ(whole[r].embeddings, whole[0].embeddings) << "rank " << r << " has encoded other bits";
      EXPECT_EQ(whole[r].logits, whole[0].logits) << "rank " << r << " has other bits";
      EXPECT_EQ(cut[r].logits, whole[0].logits) << "rank " << r << ", a prompt that is cut within items";
    }
  }
}

std::string name_of_seeing_ranks(const ::testing::TestParamInfo<VisionRanks::ParamType>& info) {
  const auto [golden, way, dtype] = info.param;
  return std::string(golden) + "_" + to_string(dtype) + "_" + std::to_string(way.ranks) +
         (way.expert_parallel ? "_experts" : "");
}

INSTANTIATE_TEST_SUITE_P(All, VisionRanks,
                         ::testing::Combine(::testing::Values("vision_small", "vision_nested"),
                                            ::testing::Values(Way{2, false}, Way{2, true}, Way{4, false}),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         name_of_seeing_ranks);

TEST(VisionRanksTest, ExpertsOfVisionThatCannotBeCutAreNamed) {
  test::TempDirectory directory;
  test::write_vision_twin("vision_small", directory.path());
  auto files = open_model({.directory = directory.path().string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  files->spec.vision->expert_intermediate = 15;
  EXPECT_EQ(check_ranks(*files, {0, 2}).message,
            "moe_intermediate_size of vision experts is 15, which --tensor-parallel-size 2 does not divide; "
            "1 would work, "
            "and so would 2 with --enable-expert-parallel.");
  const auto whole = part_of(files->spec, {1, 2, true});
  ASSERT_TRUE(whole.ok()) << whole.status().message;
  EXPECT_EQ(whole->vision->expert_intermediate, 15);
}

}  // namespace
}  // namespace troupe::model
