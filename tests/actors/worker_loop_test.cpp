// The worker between its rings and a device: with one that works on its own, plans are taken while steps run.
#include "actors/worker/worker_loop.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "ipc/patch_writer.h"
#include "support/patience.h"

namespace troupe {
namespace {

// A device whose step ends when the test says so.
class FakeExecutor final : public Executor {
 public:
  wire::Capacity capacity() const override { return {}; }
  std::string device() const override { return "fake"; }

  Status submit(const wire::RecordView& record) override {
    if (!refusal.ok()) return refusal;
    if (record.as<wire::StepMasks>() != nullptr) {
      gated = false;
      return {};
    }
    if (record.as<wire::SequenceMedia>() != nullptr) return {};
    out.push_back(record.as<wire::StepPlan>()->step);
    most_out = std::max(most_out, out.size());
    return {};
  }

  Status encode(const wire::EncodeMedia& command, std::span<const std::byte> patches) override {
    if (!refusal.ok()) return refusal;
    asked.push_back(command);
    patch_bytes.push_back(patches.size());
    last_patches = patches;
    return {};
  }

  Result<bool> poll(std::vector<std::byte>& bytes, TimePoint deadline) override {
    ++polls;
    longest_wait = std::max(longest_wait, deadline - Clock::now());
    if (!error.ok()) return error;
    if (!asked.empty()) {
      if (on_encode) on_encode();
      wire::RecordWriter<wire::MediaDone> done;
      done.begin(0);
      done.record().slot = asked.front().slot;
      done.record().item = asked.front().item;
      asked.pop_front();
      const auto ended = done.finish();
      bytes.assign(ended.begin(), ended.end());
      return true;
    }
    if (out.size() < ends_with || gated) return false;
    writer.begin(0);
    writer.record().step = out.front();
    out.pop_front();
    const auto written = writer.finish();
    bytes.assign(written.begin(), written.end());
    return true;
  }

  bool waits_for_record() const override { return gated; }
  void reset(std::uint32_t) override {
    if (on_reset) on_reset();
    out.clear();
  }
  Result<bool> prepare() override {
    if (!error.ok()) return error;
    return looks_until_ready == 0 || --looks_until_ready == 0;
  }

  std::deque<std::uint64_t> out;
  std::size_t most_out = 0;
  std::size_t ends_with = 1;  // a step ends when so many are out
  bool gated = false;         // no step ends until masks come
  int looks_until_ready = 0;  // calls of prepare() until it is done
  std::deque<wire::EncodeMedia> asked;
  std::vector<std::size_t> patch_bytes;  // of each that was asked for
  std::span<const std::byte> last_patches;
  std::function<void()> on_encode;
  int polls = 0;
  std::function<void()> on_reset;
  Duration longest_wait{};
  Status refusal, error;
  wire::RecordWriter<wire::StepResult> writer;
};

class WorkerLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fds = ipc::create_link();
    ASSERT_TRUE(fds.ok());
    auto engine_end = ipc::UpperEnd::attach(fds->step.get(), fds->cache.get());
    auto worker_end = ipc::LowerEnd::attach(fds->step.get(), fds->cache.get());
    ASSERT_TRUE(engine_end.ok() && worker_end.ok());
    engine = std::make_unique<ipc::UpperEnd>(std::move(*engine_end));
    worker = std::make_unique<ipc::LowerEnd>(std::move(*worker_end));
    const auto region = ipc::PatchRegion::create(1 << 20);
    ASSERT_TRUE(region.ok());
    auto written = ipc::PatchWriter::attach(region->get());
    ASSERT_TRUE(written.ok());
    writer.emplace(std::move(*written));
    patches = PatchRegions(mapped(region->get()));
    loop = std::make_unique<WorkerLoop>(*worker, executor, WorkerIdentity{.memory = 77}, log, &patches);
    ASSERT_TRUE(loop->begin().ok());
    EXPECT_EQ(receive(), wire::RecordKind::inventory);
    EXPECT_EQ(receive(), wire::RecordKind::hello);
  }

  wire::RecordKind receive() {
    const ipc::Received got = engine->receive(Clock::now());
    if (got.kind != ipc::Received::Kind::record) return {};
    if (const auto* result = got.view.as<wire::StepResult>()) step = result->step;
    if (const auto* hello = got.view.as<wire::Hello>()) memory = hello->memory;
    if (const auto* done = got.view.as<wire::MediaDone>()) encoded = *done;
    return got.view.header().kind;
  }

  void send_plan(std::uint64_t number) {
    wire::RecordWriter<wire::StepPlan> plan;
    plan.begin(engine->epoch());
    plan.record().step = number;
    ASSERT_TRUE(engine->try_send(ipc::Channel::step, plan.finish()));
  }

  static PatchRegions::Region mapped(int fd) {
    auto region = ipc::PatchRegion::attach(fd);
    EXPECT_TRUE(region.ok());
    return region.ok() ? std::make_shared<ipc::PatchRegion>(std::move(*region)) : nullptr;
  }
  wire::PatchPlace add_image() { return add_image(*writer); }
  static wire::PatchPlace add_image(ipc::PatchWriter& to) {
    const std::vector<std::byte> bytes(4 * kPatchBytes);
    const auto place = to.add(MediaKind::image, {1, 2, 2}, bytes);
    EXPECT_TRUE(place.ok());
    return *place;
  }
  void send_encode(std::int32_t item, const wire::PatchPlace& place, std::uint32_t front = 0) {
    wire::RecordWriter<wire::EncodeMedia> encode;
    encode.begin(engine->epoch());
    encode.record().slot = {1, 2};
    encode.record().item = item;
    encode.record().place = place;
    encode.record().front = front;
    ASSERT_TRUE(engine->try_send(ipc::Channel::step, encode.finish()));
  }

  std::unique_ptr<ipc::UpperEnd> engine;
  std::unique_ptr<ipc::LowerEnd> worker;
  FakeExecutor executor;
  Log log;
  std::unique_ptr<WorkerLoop> loop;
  std::uint64_t step = 0;
  std::uint64_t memory = 0;  // of the last greeting
  std::optional<ipc::PatchWriter> writer;
  PatchRegions patches;
  wire::MediaDone encoded;  // the last
};

TEST_F(WorkerLoopTest, TheEngineHearsOfAWorkerThatIsPrepared) {
  executor.looks_until_ready = 3;
  ASSERT_TRUE(loop->begin().ok());
  EXPECT_EQ(receive(), wire::RecordKind{});
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind{}) << "the second look";
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind::inventory);
  EXPECT_EQ(receive(), wire::RecordKind::hello);
  send_plan(1);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind::step_result);
}

TEST_F(WorkerLoopTest, AnEpochEndsWhileTheExecutorPrepares) {
  executor.looks_until_ready = 1'000'000;
  ASSERT_TRUE(loop->begin().ok());
  ASSERT_TRUE(loop->run_once().ok());
  worker->reaped(ipc::Side::upper);
  executor.looks_until_ready = 0;
  ASSERT_TRUE(loop->run_once().ok()) << "it begins again";
  EXPECT_EQ(engine->receive(Clock::now()).kind, ipc::Received::Kind::epoch_changed);
  EXPECT_EQ(receive(), wire::RecordKind::inventory);
  EXPECT_EQ(receive(), wire::RecordKind::hello);
  executor.looks_until_ready = 1'000'000;
  ASSERT_TRUE(loop->begin().ok());
  executor.error = failure(Code::internal, "no other rank can be found");
  EXPECT_EQ(loop->run_once().message, "no other rank can be found");
}

// The next engine trusts the names of blocks in this memory: no step of the old one may write them any more.
TEST_F(WorkerLoopTest, ItGreetsTheNextEngineWhenNoStepOfTheLastOneRunsAnyMore) {
  EXPECT_EQ(memory, 77u);
  executor.ends_with = 3;
  send_plan(1);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.out.size(), 1u) << "it runs";
  send_plan(2);  // on the ring
  worker->reaped(ipc::Side::upper);
  EXPECT_EQ(engine->receive(Clock::now()).kind, ipc::Received::Kind::epoch_changed);
  int resets = 0;
  executor.on_reset = [&] {
    ++resets;
    EXPECT_EQ(executor.out.size(), 1u) << "the plan on the ring was not taken";
    EXPECT_EQ(receive(), wire::RecordKind{}) << "it greets before its steps have ended";
  };
  memory = 0;
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(resets, 1);
  EXPECT_EQ(receive(), wire::RecordKind::inventory);
  EXPECT_EQ(receive(), wire::RecordKind::hello);
  EXPECT_EQ(memory, 77u) << "the same memory";
  executor.ends_with = 1;
  const int polls = executor.polls;
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_TRUE(executor.out.empty());
  EXPECT_EQ(executor.polls, polls) << "nothing is pending";
  EXPECT_EQ(receive(), wire::RecordKind{});
  EXPECT_EQ(worker->stale_records(), 1u);
}

TEST_F(WorkerLoopTest, RanksThatDoNotMeetInTimeEndTheLoop) {
  executor.looks_until_ready = 1'000'000;
  WorkerLoop impatient(*worker, executor, {.prepare_timeout = std::chrono::milliseconds(100)}, log);
  ASSERT_TRUE(impatient.begin().ok());
  Status status;
  const TimePoint end = Clock::now() + test::kPatience;
  while (status.ok() && Clock::now() < end) status = impatient.run_once();
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_EQ(status.message, "the ranks have not met within 0 s (--start-timeout)");
  EXPECT_EQ(receive(), wire::RecordKind{}) << "it has not greeted";
}

TEST_F(WorkerLoopTest, AnEpochInWhichItGreetsIsOneThatItHasJoined) {
  EXPECT_EQ(engine->joined(ipc::Side::lower), 1u);
  executor.looks_until_ready = 2;
  worker->reaped(ipc::Side::upper);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(engine->joined(ipc::Side::lower), 1u) << "not yet";
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(engine->joined(ipc::Side::lower), 2u);
}

// As while it waits for a rank that stands still: else it would be killed with that.
TEST_F(WorkerLoopTest, ItGivesSignsOfLifeWhileAStepDoesNotEnd) {
  executor.ends_with = 2;
  send_plan(1);
  std::int64_t last = engine->heartbeat_ns(ipc::Side::lower);
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(loop->run_once().ok());
    EXPECT_GT(engine->heartbeat_ns(ipc::Side::lower), last);
    last = engine->heartbeat_ns(ipc::Side::lower);
  }
  EXPECT_EQ(receive(), wire::RecordKind{});
}

TEST_F(WorkerLoopTest, APlanIsTakenWhileAStepRuns) {
  executor.ends_with = 2;
  send_plan(1);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind{}) << "step 1 has not ended";
  EXPECT_GT(executor.polls, 1) << "it was looked after again and again";
  send_plan(2);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.most_out, 2u);
  EXPECT_EQ(receive(), wire::RecordKind::step_result);
  EXPECT_EQ(step, 1u);
  EXPECT_LT(executor.longest_wait, std::chrono::milliseconds(1))
      << "a plan that comes now would wait so long";
}

TEST_F(WorkerLoopTest, MasksEndAWaitAndAreNotAnswered) {
  executor.gated = true;
  send_plan(1);
  const TimePoint before = Clock::now();
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_LT(Clock::now() - before, test::kPatience);
  EXPECT_LT(executor.polls, 10) << "it sleeps instead of asking again and again";
  EXPECT_EQ(receive(), wire::RecordKind{});

  wire::RecordWriter<wire::StepMasks> masks;
  masks.begin(engine->epoch());
  masks.record().step = 1;
  ASSERT_TRUE(engine->try_send(ipc::Channel::step, masks.finish()));
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind::step_result);
  EXPECT_EQ(receive(), wire::RecordKind{});
  executor.polls = 0;
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.polls, 0) << "nothing is pending";
}

// Behind the records of steps, in the same ring: what depends on it comes later there.
TEST_F(WorkerLoopTest, AnEncodingIsAnsweredAndAnAnnouncementIsNot) {
  wire::RecordWriter<wire::SequenceMedia> media;
  media.begin(engine->epoch());
  ASSERT_TRUE(engine->try_send(ipc::Channel::step, media.finish()));
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.polls, 0) << "nothing is pending";
  send_encode(0, add_image());
  send_plan(1);
  ASSERT_TRUE(loop->run_once().ok());
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind::media_done);
  EXPECT_EQ(receive(), wire::RecordKind::step_result);
  EXPECT_EQ(receive(), wire::RecordKind{});
  executor.polls = 0;
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.polls, 0) << "nothing is pending";
}

TEST_F(WorkerLoopTest, PatchesAreFoundWhereTheyAre) {
  send_encode(3, add_image());
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.patch_bytes, std::vector<std::size_t>{4 * kPatchBytes});
  EXPECT_EQ(receive(), wire::RecordKind::media_done);
  EXPECT_EQ(encoded.slot, (SlotRef{1, 2}));
  EXPECT_EQ(encoded.item, 3);
  EXPECT_EQ(encoded.failed, 0u);
}

/// Keeps lines in memory.
struct Lines final : LogSink {
  bool write(std::string_view line) override {
    all.emplace_back(line);
    return true;
  }
  void flush() override {}
  std::vector<std::string> all;
};

// Whether that is a fault is not known here: mostly the client has left.
TEST_F(WorkerLoopTest, WithoutPatchesAnItemFails) {
  const auto lines = std::make_shared<Lines>();
  log = Log::to_sink("worker-0", lines, {});
  const wire::PatchPlace gone = add_image();
  writer->remove(gone);
  for (const wire::PatchPlace& place :
       {gone, wire::PatchPlace{}, wire::PatchPlace{~std::uint64_t{0}, 1}, wire::PatchPlace{4096, 1}}) {
    send_encode(0, place);
    ASSERT_TRUE(loop->run_once().ok());
    EXPECT_EQ(receive(), wire::RecordKind::media_done);
    EXPECT_EQ(encoded.failed, 1u);
  }
  ASSERT_TRUE(Log::flush(5000));
  EXPECT_TRUE(lines->all.empty()) << lines->all.front();
  EXPECT_TRUE(executor.patch_bytes.empty());
  executor.polls = 0;
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(executor.polls, 0) << "nothing is pending";
}

// What was made of them must not be used: another image may have been read in part.
TEST_F(WorkerLoopTest, PatchesThatGoWhileTheyAreReadFail) {
  const wire::PatchPlace place = add_image();
  executor.on_encode = [&] { writer->remove(place); };
  send_encode(0, place);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_EQ(receive(), wire::RecordKind::media_done);
  EXPECT_EQ(encoded.failed, 1u);
}

TEST_F(WorkerLoopTest, EachFrontsPatchesAreLookedForInItsOwnRegion) {
  const auto region = ipc::PatchRegion::create(1 << 20);
  ASSERT_TRUE(region.ok());
  auto other = ipc::PatchWriter::attach(region->get());
  ASSERT_TRUE(other.ok());
  const wire::PatchPlace own = add_image(), place = add_image(*other);
  ASSERT_EQ(place, own) << "so that only the front tells them apart";
  const auto fails = [&](std::uint32_t front) {
    send_encode(0, place, front);
    EXPECT_TRUE(loop->run_once().ok());
    EXPECT_EQ(receive(), wire::RecordKind::media_done);
    return encoded.failed != 0;
  };
  EXPECT_FALSE(fails(1)) << "it has none of its own";
  patches.set(1, nullptr);
  EXPECT_TRUE(fails(1));
  EXPECT_FALSE(fails(0));
  patches.set(1, mapped(region->get()));
  writer->remove(own);
  EXPECT_FALSE(fails(1));
  EXPECT_TRUE(fails(0));
  // The region goes while an item of it is read.
  std::vector<std::byte> read;
  executor.on_encode = [&] {
    patches.set(1, nullptr);
    read.assign(executor.last_patches.begin(), executor.last_patches.end());
  };
  EXPECT_FALSE(fails(1));
  EXPECT_EQ(read.size(), 4 * kPatchBytes);
  executor.on_encode = {};
  EXPECT_TRUE(fails(1));
}

TEST_F(WorkerLoopTest, ARefusedEncodingEndsTheWorkerUnlessItsPatchesHaveGone) {
  const wire::PatchPlace place = add_image();
  executor.refusal = invalid("item 0 is not known");
  send_encode(0, place);
  EXPECT_NE(loop->run_once().message.find("item 0 is not known"), std::string::npos);
}

TEST_F(WorkerLoopTest, MasksOfAnOlderEpochNeverArrive) {
  executor.gated = true;
  send_plan(1);
  ASSERT_TRUE(loop->run_once().ok());
  wire::RecordWriter<wire::StepMasks> masks;
  masks.begin(engine->epoch());
  masks.record().step = 1;
  ASSERT_TRUE(engine->try_send(ipc::Channel::step, masks.finish()));
  worker->reaped(ipc::Side::upper);
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_TRUE(executor.gated) << "they were dropped";
  EXPECT_EQ(worker->stale_records(), 1u);
}

TEST_F(WorkerLoopTest, ATurnEndsEvenIfTheStepDoesNot) {
  executor.ends_with = 2;
  send_plan(1);
  const TimePoint before = Clock::now();
  ASSERT_TRUE(loop->run_once().ok());
  EXPECT_LT(Clock::now() - before, test::kPatience) << "the end of the process is asked for less often";
}

TEST_F(WorkerLoopTest, ResultsComeInOrder) {
  for (std::uint64_t number = 1; number <= 3; ++number) send_plan(number);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    ASSERT_TRUE(loop->run_once().ok());
    EXPECT_EQ(receive(), wire::RecordKind::step_result);
    EXPECT_EQ(step, number);
  }
  EXPECT_EQ(executor.most_out, 3u);
}

TEST_F(WorkerLoopTest, AReplacedEngineIsTold) {
  send_plan(1);
  for (const std::uint32_t old_epoch : {1u, 2u}) {
    worker->reaped(ipc::Side::upper);
    ASSERT_TRUE(loop->run_once().ok());
    EXPECT_TRUE(executor.out.empty()) << "the sequences were forgotten";
    EXPECT_EQ(engine->receive(Clock::now()).kind, ipc::Received::Kind::epoch_changed);
    const ipc::Received got = engine->receive(Clock::now());
    ASSERT_EQ(got.kind, ipc::Received::Kind::record);
    const auto* inventory = got.view.as<wire::Inventory>();
    ASSERT_NE(inventory, nullptr);
    EXPECT_EQ(inventory->old_epoch, old_epoch);
    EXPECT_EQ(receive(), wire::RecordKind::hello);
  }
}

TEST_F(WorkerLoopTest, ADeviceErrorEndsTheLoopWithItsOwnWords) {
  executor.error = failure(Code::internal, "cudaGraphLaunch: an illegal memory access");
  send_plan(1);
  EXPECT_EQ(loop->run_once().message, executor.error.message);
  executor.refusal = executor.error;
  send_plan(2);
  EXPECT_EQ(loop->run_once().message, executor.error.message);
}

TEST_F(WorkerLoopTest, ASenselessRecordEndsTheLoop) {
  executor.refusal = invalid("slot 3 generation 1: two rows in one step");
  send_plan(1);
  const Status status = loop->run_once();
  EXPECT_EQ(status.code, Code::internal);
  EXPECT_NE(status.message.find("makes no sense: slot 3"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace troupe
