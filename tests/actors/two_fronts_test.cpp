// Two fronts over rings to one engine with a worker: each gets its own tokens, and the death of one is none
// of the other's.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "actors/link/message_codec.h"
#include "actors/topology.h"
#include "actors/worker/worker_loop.h"
#include "base/json.h"
#include "model/echo_executor.h"
#include "support/byte_tokenizer.h"
#include "support/patience.h"
#include "tests/forms/support/form_gate.h"

namespace troupe {
namespace {

/// The front's end of a link, with what has come over it.
class PlayedFront {
 public:
  /// `strict`: nothing must come of sequences that it has not submitted.
  explicit PlayedFront(const ipc::LinkFds& fds, bool strict = true)
      : strict_(strict),
        link_(*ipc::UpperEnd::attach(fds.step.get(), fds.cache.get())),
        receiver_([this](const std::stop_token& stop) {
          link_.send(MessageType::greeting, 0, encoded_view(Greeting{wire::kMessagesVersion, "test"}));
          link_.receive(stop, pulse_,
                        {[this](const Arrival& arrival) { take(arrival); }, [](std::uint32_t) {},
                         [](const std::string& why) { ADD_FAILURE() << why; }});
        }) {}

  bool served() {
    return wait([this] { return up_; });
  }

  void submit(RequestKey key, std::vector<TokenId> prompt, std::int32_t answer) {
    Submit request;
    request.exchange = key.lo;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = key;
    spec.prompt = std::move(prompt);
    spec.prompt_tokens = static_cast<std::int32_t>(spec.prompt.size());
    spec.max_output_tokens = answer;
    {
      const std::lock_guard lock(mutex_);
      tokens_[key];
    }
    link_.send(MessageType::submit, 0, encoded_view(request));
  }
  void cancel(RequestKey key) { link_.send(MessageType::cancel, 0, encoded_view(Cancel{{key}})); }

  /// Asks for the form of a request of this exchange; exchanges are tags, and 1 is another's.
  void compile(std::uint64_t exchange, const std::string& regex) {
    Compile job;
    job.form = {http::AnswerForm::Kind::regex, json::to_text(regex), "guided_regex", {}};
    job.exchange = exchange;
    link_.send(MessageType::compile, exchange, encoded_view(job));
  }
  void cancel_compile(std::uint64_t exchange) {
    link_.send(MessageType::cancel_compile, 0, encoded_view(CancelCompile{0, exchange}));
  }
  /// What has become of compile(); fails the test where nothing has.
  Status compiled(std::uint64_t exchange) {
    EXPECT_TRUE(wait([&] { return compiled_.contains(exchange); }));
    const std::lock_guard lock(mutex_);
    return compiled_[exchange].status;
  }

  bool has(RequestKey key, std::size_t tokens) {
    return wait([&] { return tokens_[key].size() >= tokens; });
  }
  bool finished(RequestKey key) {
    return wait([&] { return finished_.contains(key); });
  }
  std::vector<TokenId> tokens(RequestKey key) {
    const std::lock_guard lock(mutex_);
    return tokens_[key];
  }
  /// That it has submitted, or heard of.
  std::size_t sequences() {
    const std::lock_guard lock(mutex_);
    return tokens_.size();
  }

  /// Sequences that the engine runs, whoever has submitted them; -1: it does not answer.
  std::int32_t running() {
    {
      const std::lock_guard lock(mutex_);
      running_.reset();
    }
    link_.send(MessageType::ask_status, kStatusTag, encoded_view(Probe{}));
    return wait([this] { return running_.has_value(); }) ? *running_ : -1;
  }

 private:
  static constexpr std::uint64_t kStatusTag = 1;

  void take(const Arrival& arrival) {
    const std::lock_guard lock(mutex_);
    if (arrival.type == MessageType::link_up) up_ = true;
    if (arrival.type == MessageType::answer && arrival.tag != kStatusTag) {
      ASSERT_TRUE(decode(arrival.bytes, compiled_[arrival.tag]));
    } else if (arrival.type == MessageType::answer) {
      EngineStatus status;
      ASSERT_TRUE(decode(arrival.bytes, status));
      running_ = status.scheduler.running;
    }
    if (arrival.type == MessageType::step_tokens) {
      StepTokens step;
      ASSERT_TRUE(decode(arrival.bytes, step));
      for (const SequenceTokens& entry : step.sequences) {
        // A step that ends while a front dies may reach the next one, which ignores what it has not
        // submitted.
        if (!tokens_.contains(entry.key) && !strict_) continue;
        std::vector<TokenId>& all = tokens_[entry.key];
        EXPECT_EQ(entry.position, static_cast<std::int32_t>(all.size()));
        const auto first = step.tokens.begin() + entry.first_token;
        all.insert(all.end(), first, first + entry.tokens);
        if (entry.finish != Finish::none) finished_[entry.key] = entry.finish;
      }
      link_.took_step();
    }
    changed_.notify_all();
  }
  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, test::kPatience, condition);
  }

  const bool strict_;
  Link link_;
  Pulse pulse_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool up_ = false;  // guarded by mutex_, as the next
  std::map<RequestKey, std::vector<TokenId>> tokens_;
  std::map<RequestKey, Finish> finished_;
  std::map<std::uint64_t, Compiled> compiled_;
  std::optional<std::int32_t> running_;
  std::jthread receiver_;
};

class TwoFrontsTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kSlots = 4;

  void SetUp() override {
    auto worker = ipc::create_link();
    ASSERT_TRUE(worker.ok());
    worker_ = std::move(*worker);
    EngineSetup setup;
    setup.options.scheduler.max_num_seqs = kSlots;
    setup.build = "test";
    setup.texts = VocabularyImage::copy_of(testing::ByteTokenizer());
    setup.eos_ids = {testing::ByteTokenizer::kEos};
    setup.vocabulary = 258;
    setup.executable = TROUPE_FAKE_FORM_CHILD;
    setup.log = [](const std::string&) { return Log(); };
    setup.links = {
        std::make_shared<ipc::UpperEnd>(*ipc::UpperEnd::attach(worker_.step.get(), worker_.cache.get()))};
    for (ipc::LinkFds& front : fronts_) {
      auto made = ipc::create_link();
      ASSERT_TRUE(made.ok());
      front = std::move(*made);
      setup.fronts.push_back(
          std::make_shared<Link>(*ipc::LowerEnd::attach(front.step.get(), front.cache.get())));
    }
    engine_ = std::make_unique<EngineSystem>(std::move(setup));
    loop_ = std::jthread([this](const std::stop_token& stop) {
      auto end = ipc::LowerEnd::attach(worker_.step.get(), worker_.cache.get());
      wire::Capacity capacity;
      capacity.kv_blocks = 64;
      capacity.max_slots = kSlots;
      capacity.max_tokens_per_step = 64;
      capacity.max_model_len = 2048;
      capacity.vocab_size = 1000;
      const auto executor = model::make_echo_executor(capacity);
      const Status status =
          run_worker(*end, *executor, {}, Log(), nullptr, [&] { return stop.stop_requested(); });
      EXPECT_TRUE(status.ok()) << status.message;
    });
  }
  void TearDown() override {
    loop_ = {};
    engine_.reset();
  }

  ipc::LinkFds worker_;
  ipc::LinkFds fronts_[2];
  std::unique_ptr<EngineSystem> engine_;
  std::jthread loop_;
};

TEST_F(TwoFrontsTest, EachGetsItsOwnTokens) {
  PlayedFront first(fronts_[0]), second(fronts_[1]);
  ASSERT_TRUE(first.served());
  ASSERT_TRUE(second.served());
  const RequestKey a{1, 1}, b{2, 1};
  first.submit(a, {7, 8}, 50);
  second.submit(b, {30, 31, 32}, 60);
  ASSERT_TRUE(first.finished(a));
  ASSERT_TRUE(second.finished(b));
  EXPECT_EQ(first.tokens(a).size(), 50u);
  EXPECT_EQ(second.tokens(b).size(), 60u);
  EXPECT_EQ(first.tokens(a)[1], 8);
  EXPECT_EQ(second.tokens(b)[2], 32);
  EXPECT_EQ(first.sequences(), 1u);
  EXPECT_EQ(second.sequences(), 1u);
}

TEST_F(TwoFrontsTest, TheDeathOfOneEndsItsSequencesAlone) {
  auto first = std::make_unique<PlayedFront>(fronts_[0]);
  PlayedFront second(fronts_[1]);
  ASSERT_TRUE(first->served());
  ASSERT_TRUE(second.served());
  const RequestKey a{1, 1}, b{2, 1}, c{1, 2};
  first->submit(a, {7, 8}, 2000);
  second.submit(b, {30, 31, 32}, 400);
  ASSERT_TRUE(first->has(a, 2));
  ASSERT_TRUE(second.has(b, 2));
  first.reset();
  ipc::LinkMonitor::attach(fronts_[0].step.get(), fronts_[0].cache.get())->reaped(ipc::Side::upper);
  ASSERT_TRUE(second.finished(b));
  EXPECT_EQ(second.tokens(b).size(), 400u);
  for (const TimePoint end = Clock::now() + test::kPatience; second.running() != 0;) {
    ASSERT_LT(Clock::now(), end) << "what the dead front wanted still runs";
  }

  PlayedFront next(fronts_[0], /*strict=*/false);
  ASSERT_TRUE(next.served());
  next.submit(c, {5}, 20);
  ASSERT_TRUE(next.finished(c));
  EXPECT_EQ(next.tokens(c), std::vector<TokenId>(20, 5));
}

TEST_F(TwoFrontsTest, OneThatTakesNothingHoldsUpNoOther) {
  PlayedFront first(fronts_[0]);
  ASSERT_TRUE(first.served());
  const RequestKey a{1, 1}, b{2, 1};
  // The second front sends a request and then reads nothing: its steps run out of credit.
  Link deaf(*ipc::UpperEnd::attach(fronts_[1].step.get(), fronts_[1].cache.get()));
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = b;
  spec.prompt = {9};
  spec.prompt_tokens = 1;
  spec.max_output_tokens = 1900;
  deaf.send(MessageType::greeting, 0, encoded_view(Greeting{wire::kMessagesVersion, "test"}));
  deaf.send(MessageType::submit, 0, encoded_view(request));
  first.submit(a, {7, 8}, 1500);
  ASSERT_TRUE(first.finished(a));
  EXPECT_EQ(first.tokens(a).size(), 1500u);
  EXPECT_EQ(first.running(), 1) << "the other's sequence is held";
}

// Each front counts its exchanges from 1 on.
TEST_F(TwoFrontsTest, ARequestThatEndsTakesNoFormOfTheOthersWithItsNumber) {
  PlayedFront first(fronts_[0]), second(fronts_[1]);
  ASSERT_TRUE(first.served());
  ASSERT_TRUE(second.served());
  const testing::Gate gate;
  first.compile(7, gate.regex());
  gate.wait_for_one();
  second.compile(7, gate.regex());
  second.cancel_compile(7);
  EXPECT_FALSE(second.compiled(7).ok());
  gate.open();
  EXPECT_TRUE(first.compiled(7).ok()) << first.compiled(7).message;
}

}  // namespace
}  // namespace troupe
