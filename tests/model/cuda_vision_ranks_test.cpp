// Ranks on GPUs that encode items together, each a process. Where there are fewer GPUs than ranks they share
// one.
#include <algorithm>
#include <cmath>
#include <csignal>

#include "model/cuda/encoder.h"
#include "model/support/cuda_party.h"
#include "model/support/random_tower.h"

namespace troupe::model {
namespace {

using test::Party, test::RandomTower, test::RankProcess;

constexpr int kPatches = 26 * 22;

struct SharedItem {
  MediaKind kind;
  PatchGrid grid;
};
// Large frames twice and small ones between: nothing of another item's may be seen.
constexpr SharedItem kShared[] = {{MediaKind::image, {1, 26, 22}}, {MediaKind::image, {1, 2, 2}},
                                  {MediaKind::video, {6, 26, 20}}, {MediaKind::image, {1, 4, 100}},
                                  {MediaKind::video, {2, 26, 22}}, {MediaKind::video, {18, 2, 4}},
                                  {MediaKind::image, {1, 26, 22}}, {MediaKind::video, {8, 4, 6}}};

/// A rank's encoder beside a tower of the same weights.
class Encoding {
 public:
  Encoding(Party& party, DType dtype) : party_(party), tower_(party.device, dtype, kPatches), dtype_(dtype) {
    ModelSpec spec;
    spec.hidden = test::kTowerHidden;
    spec.rms_norm_eps = 1e-5f;
    spec.vision = test::kTower;
    auto made =
        CudaEncoder::make({.ordinal = party.device.ordinal()}, spec, dtype, tower_.weights(), kPatches,
                          std::size_t{1} << 22, 2000, party.ranks.get(), kernels::kFrameQueries);
    EXPECT_TRUE(made.ok()) << made.status().message;
    encoder_ = std::move(*made);
  }

  CudaEncoder& encoder() { return *encoder_; }
  RandomTower<Cuda>& tower() { return tower_; }

  /// Empty if the epoch ended. `name`: of the contents; zero: it is not kept.
  std::vector<float> encode(const SharedItem& item, std::uint8_t name = 0) {
    const auto patches = test::random_patches(item.grid);
    wire::EncodeMedia command{};
    command.slot = {0, ++generation_};
    command.name.lo = name;
    encoder_->add(command, {item.kind, item.grid, 0}, std::as_bytes(std::span(patches)));
    EndedEncoding ended;
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    while (!encoder_->take_ended(ended)) {
      if (party_.ranks->abandoned()) return {};
      if (Clock::now() > end) {
        ADD_FAILURE() << "an item has not been encoded";
        return {};
      }
      encoder_->run_alone();
    }
    EXPECT_EQ(ended.slot, command.slot);
    cached_ = ended.cached;
    EmbeddedRows rows[1] = {{.slot = command.slot, .count = static_cast<std::int32_t>(item.grid.tokens())}};
    encoder_->find(rows);
    const auto made = tower_.read(rows[0].rows, item.grid);
    if (name != 0) encoder_->used(command.slot, 0);
    encoder_->finish(command.slot);
    return made;
  }
  bool cached() const { return cached_; }

  /// What encode() gives is what the tower gives alone.
  std::vector<float> check(const SharedItem& item, std::uint8_t name = 0) {
    const auto made = encode(item, name), expected = tower_.encode(item.kind, item.grid);
    EXPECT_EQ(made.size(), expected.size());
    double most = 0, error = 0;
    for (std::size_t i = 0; i < std::min(made.size(), expected.size()); ++i) {
      most = std::max(most, std::abs(static_cast<double>(expected[i])));
      error = std::max(error, std::abs(static_cast<double>(made[i]) - static_cast<double>(expected[i])));
    }
    EXPECT_LE(error, most * (dtype_ == DType::f32 ? 1e-5 : 1e-2))
        << item.grid.frames << " × " << item.grid.rows << " × " << item.grid.columns;
    return made;
  }

 private:
  Party& party_;
  RandomTower<Cuda> tower_;
  DType dtype_;
  std::unique_ptr<CudaEncoder> encoder_;
  std::uint32_t generation_ = 0;
  bool cached_ = false;
};

class CudaVisionRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

TEST_F(CudaVisionRanks, DISABLED_RankThatEncodes) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  Encoding encoding(party, static_cast<DType>(std::stoi(process.what)));
  ASSERT_TRUE(party.join());
  std::vector<float> all;
  const auto add = [&](const std::vector<float>& some) { all.insert(all.end(), some.begin(), some.end()); };
  for (const SharedItem& item : kShared) add(encoding.check(item));

  // What one rank alone has kept is encoded by both; what both have is not.
  const bool first = party.shard.rank == 0;
  add(encoding.check(kShared[0], first ? 5 : 0));
  add(encoding.check(kShared[0], 5));
  EXPECT_FALSE(encoding.cached());
  add(encoding.check(kShared[0], 5));
  EXPECT_TRUE(encoding.cached());

  // One whose patches are gone on a rank is encoded by the other alone, and the next one by both again.
  if (first) {
    EXPECT_EQ(encoding.encode(kShared[2]), encoding.tower().encode(kShared[2].kind, kShared[2].grid));
  } else {
    encoding.encoder().skip();
  }
  add(encoding.check(kShared[4]));
  process.answer(all);
  party.device.sync();
}

TEST_F(CudaVisionRanks, HaveTheSameEmbeddings) {
  for (const int ranks : {2, 4}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      if (ranks == 4 && dtype == DType::f32) continue;
      const auto answers = test::run_ranks<float>("CudaVisionRanks.DISABLED_RankThatEncodes", ranks, false,
                                                  std::to_string(static_cast<int>(dtype)));
      ASSERT_FALSE(answers[0].empty());
      for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]) << ranks << " " << to_string(dtype);
    }
  }
}

TEST_F(CudaVisionRanks, DISABLED_RankThatEncodesForEver) {
  Party party(RankProcess::mine());
  Encoding encoding(party, DType::bf16);
  ASSERT_TRUE(party.join());
  while (!encoding.encode(kShared[0]).empty()) {
  }
}

// Who is left when the other is killed in the middle waits for nothing, and encodes with the next one.
TEST_F(CudaVisionRanks, ADeathHoldsNobodyUp) {
  const auto fd = create_rank_memory(2);
  ASSERT_TRUE(fd.ok());
  auto memory = RankMemory::attach(*fd);
  ASSERT_TRUE(memory.ok());
  Party party(RankProcess{{0, 2, false}, *fd});
  Encoding encoding(party, DType::bf16);
  const auto expected = encoding.tower().encode(kShared[0].kind, kShared[0].grid);
  for (std::uint32_t epoch = 1; epoch <= 3; ++epoch) {
    const pid_t other =
        test::start_rank("CudaVisionRanks.DISABLED_RankThatEncodesForEver", {{1, 2, false}, *fd});
    ASSERT_TRUE(party.join());
    std::jthread supervisor;
    for (int i = 0; !party.ranks->abandoned(); ++i) {
      const auto made = encoding.encode(kShared[0]);
      if (i == 0) {
        EXPECT_EQ(made.size(), expected.size()) << "epoch " << epoch;
      }
      if (i != 20) continue;
      supervisor = std::jthread([&, other] {
        ::kill(other, SIGKILL);
        ::waitpid(other, nullptr, 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        memory->set_epoch(epoch + 1);
      });
    }
    supervisor.join();
    party.ranks->leave();
    const TimePoint left = Clock::now();
    while (encoding.encoder().is_running()) {
    }
    EXPECT_LT(Clock::now() - left, std::chrono::seconds(1));
    encoding.encoder().reset();
    party.ranks->begin_epoch(memory->epoch());
  }
  ::close(*fd);
}

}  // namespace
}  // namespace troupe::model
