// Prompts with images and videos through SCHEDULER, CACHE MANAGER, WORKER LINK, the rings and a worker that
// encodes what it finds in the memory of patches: the answers are the reference's, also after a worker's
// death and with what the prefix cache has.
#include <gtest/gtest.h>

#include <atomic>
#include <caf/all.hpp>
#include <thread>

#include "actors/cache/cache_actor.h"
#include "actors/scheduler/scheduler_actor.h"
#include "actors/worker/worker_link_actor.h"
#include "actors/worker/worker_loop.h"
#include "ipc/patch_writer.h"
#include "model/cpu_executor.h"
#include "model/sizing.h"
#include "model/support/vision_golden.h"
#include "support/heard_front.h"
#include "support/patience.h"

namespace troupe {
namespace {

using model::test::VisionGolden;

/// A worker process, played by a thread.
class SeeingWorker {
 public:
  SeeingWorker(const ipc::LinkFds& fds, int patches_fd)
      : thread_([&fds, patches_fd](std::stop_token stop) {
          auto end = ipc::LowerEnd::attach(fds.step.get(), fds.cache.get());
          auto patches = ipc::PatchRegion::attach(patches_fd);
          ASSERT_TRUE(end.ok() && patches.ok());
          const PatchRegions regions(std::make_shared<ipc::PatchRegion>(std::move(*patches)));
          config::Options options;
          options.model.directory = model::test::golden_directory("vision_small").string();
          options.model.dtype = config::DTypeOption::float32;
          options.device.cpu_threads = 2;
          options.device.num_gpu_blocks_override = 32;
          options.scheduler.max_num_batched_tokens = 64;
          options.scheduler.max_num_seqs = 4;
          options.scheduler.max_model_len = 256;
          const auto files = model::open_model(options.model);
          ASSERT_TRUE(files.ok()) << files.status().message;
          model::HostMemory memory;
          memory.available = std::uint64_t{8} << 30;
          const auto capacity = model::size_cpu(files->spec, files->formats, files->tied, options, memory);
          ASSERT_TRUE(capacity.ok()) << capacity.status().message;
          EXPECT_EQ(capacity->media_tokens, 256);
          const auto executor = model::make_cpu_executor(*files, options, *capacity);
          ASSERT_TRUE(executor.ok()) << executor.status().message;
          const Log log;
          const Status status =
              run_worker(*end, **executor, {}, log, &regions, [&] { return stop.stop_requested(); });
          EXPECT_TRUE(status.ok()) << status.message;
        }) {}

 private:
  std::jthread thread_;
};

class SeeingEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fds = ipc::create_link();
    auto region = ipc::PatchRegion::create(1 << 20);
    ASSERT_TRUE(fds.ok() && region.ok());
    fds_ = std::move(*fds);
    region_ = std::move(*region);
    auto writer = ipc::PatchWriter::attach(region_.get());
    auto monitor = ipc::LinkMonitor::attach(fds_.step.get(), fds_.cache.get());
    auto engine = ipc::UpperEnd::attach(fds_.step.get(), fds_.cache.get());
    ASSERT_TRUE(writer.ok() && monitor.ok() && engine.ok());
    writer_.emplace(std::move(*writer));
    monitor_.emplace(std::move(*monitor));
    config_.set("logger.verbosity", caf::atom("quiet"));
    system_ = std::make_unique<caf::actor_system>(config_);
    const auto link = system_->spawn(
        worker_link_behavior, WorkerLinkParts{std::make_shared<ipc::UpperEnd>(std::move(*engine)), 0, 0, {}});
    const auto cache = system_->spawn(cache_behavior, CacheParts{link, {}});
    scheduler_ =
        system_->spawn(scheduler_behavior,
                       SchedulerParts{{}, {true, true, {1, 2}}, cache, link, {front_}, {}, grammar_actor{}});
    caf::anon_send(link, Attach{cache, scheduler_, {}});
    actors_ = {caf::actor_cast<caf::actor>(scheduler_), caf::actor_cast<caf::actor>(cache),
               caf::actor_cast<caf::actor>(link)};
    worker_ = std::make_unique<SeeingWorker>(fds_, region_.get());
  }
  void TearDown() override {
    caf::scoped_actor self(*system_);
    for (const caf::actor& actor : actors_) self->send_exit(actor, caf::exit_reason::kill);
    scheduler_ = scheduler_actor();
    actors_.clear();
  }

  /// A sequence with the golden's prompt; its patches are in the region.
  SequenceSpec spec(const VisionGolden& golden, std::uint64_t contents = 100) {
    SequenceSpec spec;
    spec.key = {1, ++keys_};
    spec.prompt = golden.ids;
    spec.prompt_tokens = static_cast<std::int32_t>(golden.ids.size());
    spec.max_output_tokens = static_cast<std::int32_t>(golden.greedy.size());
    spec.sampling.temperature = 0;
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const MediaItem& item = golden.items[i];
      const auto place = writer_->add(item.kind, item.grid, std::as_bytes(golden.patches_of(i)));
      EXPECT_TRUE(place.ok());
      spec.media.push_back({item, {contents, i + 1}, *place});
    }
    expected_[spec.key] = golden.greedy;
    return spec;
  }

  void submit(const std::vector<SequenceSpec>& sequences) {
    Submit request;
    request.sequences = sequences;
    request.prefix = prefix_;
    const TimePoint deadline = Clock::now() + test::kPatience;
    for (bool accepted = false; !accepted && Clock::now() < deadline;) {  // refused until the worker has come
      caf::anon_send(scheduler_, FrontSubmit{0, request});
      settle();
      const std::vector<Refused> refused = front_->take_refused();
      accepted = refused.empty();
      for (const Refused& one : refused) ASSERT_EQ(one.status.code, Code::unavailable) << one.status.message;
      if (!accepted) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  /// SCHEDULER has done what it was sent until now.
  void settle() {
    caf::scoped_actor self(*system_);
    self->request(scheduler_, caf::infinite, caf::get_atom::value)
        .receive([](const SchedulerStatus&) {}, [](const caf::error&) { ADD_FAILURE() << "no answer"; });
  }

  void take() {
    for (const StepTokens& step : front_->take_tokens()) {
      for (const SequenceTokens& s : step.sequences) {
        for (std::int32_t i = 0; i < s.tokens; ++i)
          got_[s.key].push_back(step.tokens[static_cast<std::size_t>(s.first_token + i)]);
        cached_ += s.cached_tokens;
        if (s.finish != Finish::none) ended_[s.key] = s.finish;
        if (s.error >= 0) error_ = step.error_of(s);
      }
    }
    for (const StepStats& stats : front_->take_stats()) {
      encoded_ += stats.encoded;
      encodings_found_ += stats.encodings_found;
    }
  }
  void finish(std::size_t ended) {
    const TimePoint deadline = Clock::now() + test::kPatience;
    while (ended_.size() < ended && Clock::now() < deadline) {
      take();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(ended_.size(), ended);
    settle();  // the counters of the last step come behind its tokens
    take();
  }

  ipc::LinkFds fds_;
  ipc::Fd region_;
  std::optional<ipc::PatchWriter> writer_;
  std::optional<ipc::LinkMonitor> monitor_;
  std::shared_ptr<testing::HeardFront> front_ = std::make_shared<testing::HeardFront>();
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  scheduler_actor scheduler_;
  std::vector<caf::actor> actors_;
  std::unique_ptr<SeeingWorker> worker_;
  std::uint64_t keys_ = 0;
  std::map<RequestKey, std::vector<TokenId>> expected_, got_;
  std::map<RequestKey, Finish> ended_;
  std::string error_;
  std::int64_t cached_ = 0, encoded_ = 0, encodings_found_ = 0;
  PrefixUse prefix_;  ///< of what is submitted next
};

TEST_F(SeeingEngine, AnswersAsTheReference) {
  submit({spec(model::test::load_vision_golden("mixed")), spec(model::test::load_vision_golden("long"), 200),
          spec(model::test::load_vision_golden("text"))});
  finish(3);
  EXPECT_EQ(got_, expected_);
}

TEST_F(SeeingEngine, WhatIsCachedIsNotEncodedAgain) {
  const VisionGolden mixed = model::test::load_vision_golden("mixed");
  VisionGolden longer = mixed;  // of several blocks
  while (longer.ids.size() < 200) {
    const auto at = static_cast<std::int32_t>(longer.ids.size());
    longer.ids.insert(longer.ids.end(), mixed.ids.begin(), mixed.ids.end());
    longer.patches.insert(longer.patches.end(), mixed.patches.begin(), mixed.patches.end());
    for (MediaItem item : mixed.items) {
      item.first += at;
      longer.items.push_back(item);
    }
  }
  const SequenceSpec first = spec(longer), again = spec(longer), other = spec(longer, 200);
  submit({first});
  finish(1);
  const auto all = static_cast<std::int64_t>(longer.items.size());
  EXPECT_EQ(cached_, 0);
  EXPECT_EQ(encoded_, all);

  submit({again});
  finish(2);
  EXPECT_EQ(got_[again.key], got_[first.key]);
  EXPECT_EQ(cached_, 192);
  EXPECT_LT(encoded_, 2 * all);

  // The same ids, and images that are said to be others: nothing of it is found.
  encoded_ = cached_ = 0;
  submit({other});
  finish(3);
  EXPECT_EQ(got_[other.key], got_[first.key]);
  EXPECT_EQ(cached_, 0);
  EXPECT_EQ(encoded_, all);
}

// Behind another beginning nothing is found in the prefix cache, but the encoder's output still is; by
// requests with the same salt.
TEST_F(SeeingEngine, TheSameImageIsEncodedOnce) {
  const VisionGolden mixed = model::test::load_vision_golden("mixed");
  VisionGolden later = mixed;
  later.ids.insert(later.ids.begin(), mixed.ids.front());
  for (MediaItem& item : later.items) ++item.first;
  const auto all = static_cast<std::int64_t>(mixed.items.size());
  submit({spec(mixed)});
  finish(1);
  EXPECT_EQ(encoded_, all);
  const SequenceSpec second = spec(later), salted = spec(later), uncached = spec(later);
  submit({second});
  finish(2);
  EXPECT_EQ(encoded_, all);
  EXPECT_EQ(encodings_found_, all);
  prefix_.salt = "another";
  submit({salted});
  finish(3);
  EXPECT_EQ(encoded_, 2 * all);
  prefix_ = {.enabled = false};
  submit({uncached});
  finish(4);
  EXPECT_EQ(encoded_, 3 * all);
  EXPECT_EQ(encodings_found_, all);
  EXPECT_EQ(got_[second.key], got_[uncached.key]);
  EXPECT_EQ(got_[salted.key], got_[uncached.key]);
}

TEST_F(SeeingEngine, ChoicesShareWhatIsSeen) {
  const VisionGolden mixed = model::test::load_vision_golden("mixed");
  SequenceSpec first = spec(mixed), second = first;
  second.key = {1, ++keys_};
  second.parent = first.key;
  second.prompt.clear();
  second.media.clear();
  second.sampling.choice = 1;
  expected_[second.key] = mixed.greedy;
  submit({first, second});
  finish(2);
  EXPECT_EQ(got_, expected_);
  EXPECT_EQ(encoded_, static_cast<std::int64_t>(mixed.items.size()));
}

TEST_F(SeeingEngine, ADeathOfTheWorkerIsNotSeen) {
  const VisionGolden mixed = model::test::load_vision_golden("mixed");
  submit({spec(mixed), spec(model::test::load_vision_golden("long"), 200)});
  const TimePoint deadline = Clock::now() + test::kPatience;
  while (got_.empty() && Clock::now() < deadline) take();
  worker_.reset();
  monitor_->reaped(ipc::Side::lower);
  worker_ = std::make_unique<SeeingWorker>(fds_, region_.get());
  finish(2);
  EXPECT_EQ(got_, expected_);
}

TEST_F(SeeingEngine, WithoutItsPatchesARequestEnds) {
  const VisionGolden mixed = model::test::load_vision_golden("mixed");
  SequenceSpec gone = spec(mixed), good = spec(mixed);
  writer_->remove(gone.media.back().place);
  submit({gone, good});
  finish(2);
  EXPECT_EQ(ended_[gone.key], Finish::error);
  EXPECT_NE(error_.find("not available any more"), std::string::npos) << error_;
  EXPECT_EQ(got_[good.key], mixed.greedy);
}

}  // namespace
}  // namespace troupe
