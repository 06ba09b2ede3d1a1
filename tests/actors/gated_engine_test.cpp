// Constrained sequences through SCHEDULER, CACHE MANAGER, WORKER LINK, the rings and a worker with an
// executor, beside a GRAMMAR that the test plays: masks reach the step that they are for, also after a
// worker's death.
#include <gtest/gtest.h>

#include <caf/all.hpp>
#include <thread>

#include "actors/cache/cache_actor.h"
#include "actors/record_bytes.h"
#include "actors/scheduler/scheduler_actor.h"
#include "actors/worker/worker_link_actor.h"
#include "actors/worker/worker_loop.h"
#include "model/echo_executor.h"
#include "support/heard_front.h"
#include "support/patience.h"
#include "tests/scheduler/grammar_model.h"

namespace troupe {
namespace {

constexpr std::int32_t kGatedVocab = 1000;
constexpr std::int32_t kOutputs = 60;

struct GrammarPlayer {
  static inline const char* name = "grammar";
  test::GrammarModel model;
};

grammar_actor::behavior_type play_grammar(grammar_actor::stateful_pointer<GrammarPlayer> self,
                                          workers_actor link) {
  int asked = 0;
  self->state.model.takes_long = [asked]() mutable { return ++asked % 7 == 0; };
  return {answer_beat,
          [](const Compile&) { return Compiled{}; },
          [](const CancelCompile&) {},
          [](const ReleaseGrammar&) {},
          [self, link](const GrammarStep& step) {
            const auto scheduler = caf::actor_cast<scheduler_actor>(self->current_sender());
            self->state.model.receive(step, kGatedVocab);
            EXPECT_EQ(self->state.model.complaint(), "");
            MasksLate late = self->state.model.take_late();
            if (!late.keys.empty()) self->send(scheduler, std::move(late));
            for (const auto& masks : self->state.model.take_masks())
              self->send(link, SendMasks{to_bytes(masks)});
            MasksMade made;
            while (self->state.model.make(made)) {
            }
            if (!made.keys.empty()) self->send(scheduler, std::move(made));
          },
          [](const FormReady&) {},
          [](const TakeMade&) {}};
}

/// A worker process, played by a thread.
class WorkerThread {
 public:
  explicit WorkerThread(const ipc::LinkFds& fds)
      : thread_([&fds](std::stop_token stop) {
          auto end = ipc::LowerEnd::attach(fds.step.get(), fds.cache.get());
          ASSERT_TRUE(end.ok());
          wire::Capacity capacity;
          capacity.kv_blocks = 64;
          capacity.max_slots = 6;
          capacity.max_tokens_per_step = 40;
          capacity.max_model_len = 512;
          capacity.vocab_size = kGatedVocab;
          const auto executor = model::make_echo_executor(capacity);
          const Log log;
          const Status status =
              run_worker(*end, *executor, {}, log, nullptr, [&] { return stop.stop_requested(); });
          EXPECT_TRUE(status.ok()) << status.message;
        }) {}

 private:
  std::jthread thread_;
};

SequenceSpec constrained(std::uint64_t key, std::int32_t prompt) {
  SequenceSpec spec;
  spec.key = {1, key};
  for (std::int32_t i = 0; i < prompt; ++i)
    spec.prompt.push_back(static_cast<TokenId>((key * 131 + static_cast<std::uint64_t>(i) * 17) % 900));
  spec.prompt_tokens = prompt;
  spec.max_output_tokens = kOutputs;
  if (key % 4 != 0) spec.grammar = key;
  spec.gated_from = static_cast<std::int32_t>(key % 3);
  return spec;
}

/// What the echo gives, held to the grammar.
std::vector<TokenId> expected_of(const SequenceSpec& spec) {
  std::vector<TokenId> tokens;
  test::GrammarState state(spec.grammar);
  for (std::int32_t n = 0; n < kOutputs; ++n) {
    TokenId token = spec.prompt[static_cast<std::size_t>(n) % spec.prompt.size()];
    if (spec.grammar != 0 && n >= spec.gated_from) token = state.nearest(token, kGatedVocab);
    state.take(token);
    tokens.push_back(token);
  }
  return tokens;
}

TEST(GatedEngine, EverySequenceSaysWhatItsGrammarAllowsAlsoAfterAWorkersDeath) {
  auto fds = ipc::create_link();
  ASSERT_TRUE(fds.ok());
  auto monitor = ipc::LinkMonitor::attach(fds->step.get(), fds->cache.get());
  auto engine = ipc::UpperEnd::attach(fds->step.get(), fds->cache.get());
  ASSERT_TRUE(monitor.ok() && engine.ok());
  caf::actor_system_config config;
  config.set("logger.verbosity", caf::atom("quiet"));
  caf::actor_system system(config);
  {
    caf::scoped_actor self(system);
    const auto link = system.spawn(
        worker_link_behavior, WorkerLinkParts{std::make_shared<ipc::UpperEnd>(std::move(*engine)), 0, 0, {}});
    const auto cache = system.spawn(cache_behavior, CacheParts{link, {}});
    const auto front = std::make_shared<testing::HeardFront>();
    const auto grammar = system.spawn(play_grammar, link);
    const auto scheduler =
        system.spawn(scheduler_behavior, SchedulerParts{{}, {}, cache, link, {front}, {}, grammar});
    caf::anon_send(link, Attach{cache, scheduler, {}});
    auto worker = std::make_unique<WorkerThread>(*fds);

    std::map<RequestKey, std::vector<TokenId>> expected, got;
    Submit request;
    for (std::uint64_t key = 1; key <= 12; ++key) {
      request.sequences.push_back(constrained(key, 3 + static_cast<std::int32_t>(key * 11 % 70)));
      expected[{1, key}] = expected_of(request.sequences.back());
    }
    const TimePoint deadline = Clock::now() + test::kPatience;
    // Refused until the worker has attached.
    for (bool accepted = false; !accepted && Clock::now() < deadline;) {
      self->request(scheduler, caf::infinite, caf::get_atom::value)
          .receive([](const SchedulerStatus&) {}, [](const caf::error&) { ADD_FAILURE() << "no answer"; });
      caf::anon_send(scheduler, FrontSubmit{0, request});
      self->request(scheduler, caf::infinite, caf::get_atom::value)
          .receive([](const SchedulerStatus&) {}, [](const caf::error&) { ADD_FAILURE() << "no answer"; });
      accepted = front->take_refused().empty();
    }
    std::size_t ended = 0, tokens = 0;
    bool died = false;
    while (ended < expected.size() && Clock::now() < deadline) {
      for (const StepTokens& step : front->take_tokens()) {
        for (const SequenceTokens& s : step.sequences) {
          for (std::int32_t i = 0; i < s.tokens; ++i, ++tokens)
            got[s.key].push_back(step.tokens[static_cast<std::size_t>(s.first_token + i)]);
          ended += s.finish != Finish::none ? 1 : 0;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (died || tokens < 100) continue;
      died = true;
      worker.reset();
      monitor->reaped(ipc::Side::lower);
      worker = std::make_unique<WorkerThread>(*fds);
    }
    EXPECT_EQ(ended, expected.size());
    EXPECT_EQ(got, expected);
    self->send_exit(scheduler, caf::exit_reason::kill);
    self->send_exit(grammar, caf::exit_reason::kill);
    self->send_exit(cache, caf::exit_reason::kill);
    self->send_exit(link, caf::exit_reason::kill);
  }
}

}  // namespace
}  // namespace troupe
