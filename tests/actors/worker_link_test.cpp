// WORKER LINK's sending side: masks wait for room on the ring, plans need not.
#include "actors/worker/worker_link_actor.h"

#include "actors/record_bytes.h"
#include "support/actor_world.h"

namespace troupe {
namespace {

constexpr std::uint32_t kRing = 64u << 10;

class WorkerLinkTest : public testing::ActorWorld {
 protected:
  WorkerLinkTest() {
    auto fds = ipc::create_link({kRing, kRing, 4096, 4096});
    EXPECT_TRUE(fds.ok());
    auto engine = ipc::UpperEnd::attach(fds->step.get(), fds->cache.get());
    auto worker = ipc::LowerEnd::attach(fds->step.get(), fds->cache.get());
    EXPECT_TRUE(engine.ok() && worker.ok());
    worker_ = std::make_unique<ipc::LowerEnd>(std::move(*worker));
    actor_ =
        keep(system_.spawn(worker_link_behavior,
                           WorkerLinkParts{std::make_shared<ipc::UpperEnd>(std::move(*engine)), 0, 0, {}}));
    self_->monitor(actor_);
  }

  void send_masks(std::uint64_t step, std::size_t words) {
    wire::RecordWriter<wire::StepMasks> writer;
    writer.begin(1);
    const wire::RowMask row{{0, 1}, wire::MaskForm::bits, writer.array(std::vector<std::uint32_t>(words, 5))};
    const auto rows = writer.array(std::span<const wire::RowMask>(&row, 1));
    writer.record().step = step;
    writer.record().rows = rows;
    self_->send(actor_, SendMasks{to_bytes(writer.finish())});
    run();
  }
  void send_plan(std::size_t ids) {
    wire::RecordWriter<wire::StepPlan> writer;
    writer.begin(1);
    const wire::TokenRun run_of{{}, 0, 0, writer.array(std::vector<TokenId>(ids, 5))};
    const auto runs = writer.array(std::span<const wire::TokenRun>(&run_of, 1));
    writer.record().tokens = runs;
    self_->send(actor_, SendPlan{to_bytes(writer.finish())});
    run();
  }
  /// The next record; false when there is none.
  bool receive() {
    const ipc::Received got = worker_->receive(Clock::now());
    if (got.kind != ipc::Received::Kind::record) return false;
    const auto* masks = got.view.as<wire::StepMasks>();
    step_ = masks != nullptr ? masks->step : 0;
    return true;
  }
  bool alive() { return !self_->has_next_message(); }

  std::unique_ptr<ipc::LowerEnd> worker_;
  worker_link_actor actor_;
  std::uint64_t step_ = 0;  // of the masks that were received last; 0: a plan
};

TEST_F(WorkerLinkTest, MasksWaitForRoomInOrderAndAPlanPassesThem) {
  for (std::uint64_t step = 1; step <= 20; ++step) send_masks(step, 1500);  // 6 KB each
  send_plan(4000);                                                          // 16 KB
  EXPECT_TRUE(alive());
  for (std::uint64_t step = 1; step <= 5; ++step) {
    ASSERT_TRUE(receive());
    EXPECT_EQ(step_, step) << "so many fit half of the ring";
  }
  ASSERT_TRUE(receive());
  EXPECT_EQ(step_, 0u) << "the plan";
  EXPECT_FALSE(receive());
  std::uint64_t next = 6;
  for (int wait = 0; wait < 20 && next <= 20; ++wait) {
    scheduler_.advance_time(std::chrono::milliseconds(1));
    run();
    while (receive()) EXPECT_EQ(step_, next++);
  }
  EXPECT_EQ(next, 21u);
  EXPECT_TRUE(alive());
}

TEST_F(WorkerLinkTest, TheLongestMasksPassAnEmptyRing) {
  const std::size_t longest = (kRing / 2 - 8 - sizeof(wire::StepMasks) - 24) / 4;
  for (std::uint64_t step = 1; step <= 6; ++step) {
    send_masks(step, longest - 2 * step);
    scheduler_.advance_time(std::chrono::milliseconds(1));
    run();
    ASSERT_TRUE(receive());
    EXPECT_EQ(step_, step);
    worker_->done();
  }
  EXPECT_TRUE(alive());
}

TEST_F(WorkerLinkTest, MasksThatWaitEndWithTheirWorker) {
  for (std::uint64_t step = 1; step <= 9; ++step) send_masks(step, 1500);
  self_->send(actor_, LinkDown{"killed"});
  run();
  while (receive()) EXPECT_LE(step_, 5u);
  scheduler_.advance_time(std::chrono::milliseconds(5));
  run();
  EXPECT_FALSE(receive());
  send_masks(10, 1500);
  ASSERT_TRUE(receive());
  EXPECT_EQ(step_, 10u);
  EXPECT_TRUE(alive());
}

TEST_F(WorkerLinkTest, MasksLongerThanARecordEndTheActor) {
  send_masks(1, kRing / 8);
  EXPECT_FALSE(alive());
  self_->receive([](const caf::down_msg& message) { EXPECT_TRUE(static_cast<bool>(message.reason)); });
}

}  // namespace
}  // namespace troupe
