// Cancellation at every stage of a request, with the neighbours of SESSION HOST played by the test.
#include "actors/session/session_host_actor.h"

#include "support/actor_world.h"
#include "support/byte_tokenizer.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

class SessionHostTest : public testing::ActorWorld {
 protected:
  SessionHostTest() {
    tokenizer_ = keep(system_.spawn([this](tokenizer_actor::pointer self) -> tokenizer_actor::behavior_type {
      self->set_exit_handler(
          [this](const caf::exit_msg&) { answer_pending(); });  // a promise needs its actor
      return {answer_beat, [this, self](const Encode& job) {
        encodes_.push_back(job.request_id);
        auto promise = self->make_response_promise<Encoded>();
        if (slow_tokenizer_) {
          pending_.push_back(promise);  // the answer comes when the test gives it
        } else {
          promise.deliver(hi());
        }
        return promise;
      }};
    }));
    scheduler_ = keep(system_.spawn([this](scheduler_actor::pointer) -> scheduler_actor::behavior_type {
      return {answer_beat, [this](Submit& submit) {
                submits_.push_back(submit);
                return verdict_;
              },
              [this](const Cancel& cancel) { cancels_.insert(cancels_.end(), cancel.keys.begin(), cancel.keys.end()); },
              [](const StepDone&) {}, [](const MasksLate&) {}, [](const MasksMade&) {}, [](const CacheGrants&) {}, [](const LinkUp&) {}, [](const LinkDown&) {},
              [](caf::get_atom) { return SchedulerStatus{}; }};
    }));
    metrics_ = keep(system_.spawn([this](metrics_actor::pointer) -> metrics_actor::behavior_type {
      return {answer_beat, [](const StepStats&) {}, [this](const RequestStats& stats) { finished_.push_back(stats); },
              [](const HttpStats&) {}, [](const DoorStats&) {}, [](const ProcessReports&) {},
              [](caf::get_atom) { return std::string(); }};
    }));
    long_tokenizer_ = keep(system_.spawn([this](tokenizer_actor::pointer) -> tokenizer_actor::behavior_type {
      return {answer_beat, [this](const Encode& job) {
        long_encodes_.push_back(job.request_id);
        return hi();
      }};
    }));
    grammar_ = keep(system_.spawn([this](grammar_actor::pointer self) -> grammar_actor::behavior_type {
      self->set_exit_handler([this](const caf::exit_msg&) { compiling_[answered_].deliver(compiled_); });
      return {answer_beat,
              [this, self](const Compile& job) {
                compiles_.push_back(job);
                return compiling_.emplace_back(self->make_response_promise<Compiled>());
              },
              [this](const CancelCompile& cancel) { cancelled_compiles_.push_back(cancel.exchange); },
              [](const WatchGrammar&) { return Status(); }, [](const ReleaseGrammar&) {}, [](const GrammarStep&) {},
              [](const FormReady&) {}, [](const TakeMade&) {}};
    }));
    SessionHostParts parts;
    parts.grammar = grammar_;
    parts.slice_ns = std::chrono::nanoseconds(std::chrono::hours(1)).count();  // a busy machine must not end a turn
    parts.context = std::make_shared<SessionContext>(SessionContext{
        std::make_shared<testing::ByteTokenizer>(), {testing::ByteTokenizer::kEos}, 64, 258});
    parts.tokenizers = {tokenizer_, long_tokenizer_};
    parts.scheduler = scheduler_;
    parts.metrics = metrics_;
    parts.deliver = [this](std::uint32_t, std::vector<http::Output>&& outputs) {
      for (auto& output : outputs) answers_.push_back(std::move(output));
    };
    host_ = keep(system_.spawn(session_host_behavior, std::move(parts)));
    run();
  }

  static Encoded hi() {
    Encoded out;
    out.prompts = {{'h', 'i'}};
    return out;
  }
  void answer_pending() {
    for (auto& promise : std::exchange(pending_, {})) promise.deliver(hi());
  }

  /// GRAMMAR answers the Compile of this index.
  void compiled(std::size_t index, Compiled outcome) {
    answered_ = index;
    compiled_ = std::move(outcome);
    caf::anon_send_exit(grammar_, caf::exit_reason::user_shutdown);
    run();
  }

  /// Opens an exchange as GATEWAY would; `closed_` tells when its credit came back.
  void open(bool stream = false, std::uint64_t exchange = 3, std::int64_t body_bytes = 100,
            std::chrono::nanoseconds timeout = std::chrono::hours(1), http::AnswerForm form = {}) {
    Ask ask;
    ask.client = "net:somebody";
    ask.generation.form = std::move(form);
    ask.arrived_ns = now_ns();
    ask.timeout_ns = timeout.count();
    ask.exchange = exchange;
    ask.body_bytes = body_bytes;
    ask.request_id = "r" + std::to_string(exchange);
    ask.answer.stream = stream;
    auto gateway = keep(system_.spawn([this, ask](caf::event_based_actor* self) -> caf::behavior {
      self->request(host_, caf::infinite, ask).then([this](const Closed& closed) { closed_.push_back(closed.exchange); });
      return {[](int) {}};
    }));
    run();
  }
  void withdraw(std::uint64_t exchange = 3) {
    self_->send(host_, Withdraw{0, exchange});
    run();
  }
  void tokens(const std::string& text, Finish finish, const std::string& error = {}) {
    StepTokens step;
    SequenceTokens sequence;
    sequence.key = submits_.at(0).sequences.at(0).key;
    for (const char c : text) step.tokens.push_back(static_cast<unsigned char>(c));
    sequence.tokens = static_cast<std::int32_t>(text.size());
    sequence.finish = finish;
    sequence.error = error;
    step.sequences.push_back(sequence);
    self_->send(host_, step);
    run();
  }

  bool slow_tokenizer_ = false;
  Status verdict_;
  std::vector<caf::typed_response_promise<Encoded>> pending_;
  std::vector<std::string> encodes_;
  std::vector<std::string> long_encodes_;
  std::vector<Submit> submits_;
  std::vector<RequestKey> cancels_;
  std::vector<Compile> compiles_;
  std::vector<caf::typed_response_promise<Compiled>> compiling_;
  std::size_t answered_ = 0;  ///< index of the Compile that compiled_ answers
  Compiled compiled_;
  std::vector<std::uint64_t> cancelled_compiles_;
  std::vector<RequestStats> finished_;
  std::vector<http::Output> answers_;
  std::vector<std::uint64_t> closed_;
  tokenizer_actor tokenizer_;
  tokenizer_actor long_tokenizer_;
  scheduler_actor scheduler_;
  grammar_actor grammar_;
  metrics_actor metrics_;
  session_host_actor host_;
};

TEST_F(SessionHostTest, ARequestGoesThroughAndGivesItsCreditBack) {
  open();
  EXPECT_EQ(encodes_, std::vector<std::string>{"r3"});
  ASSERT_EQ(submits_.size(), 1u);
  EXPECT_EQ(submits_[0].request_id, "r3");
  EXPECT_TRUE(closed_.empty());
  tokens("ok", Finish::length);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 200);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(finished_[0].ok);
  EXPECT_TRUE(cancels_.empty());
}

TEST_F(SessionHostTest, AFormWhoseClientHasLeftIsCancelled) {
  const http::AnswerForm form{http::AnswerForm::Kind::regex, "a+", "guided_regex"};
  open(false, 3, 100, std::chrono::hours(1), form);
  open(false, 4, 100, std::chrono::hours(1), form);
  ASSERT_EQ(compiles_.size(), 2u);
  EXPECT_EQ(compiles_[0].client, "net:somebody");
  EXPECT_EQ(compiles_[0].exchange, 3u);
  compiled(1, {{}, 7});
  withdraw(3);
  withdraw(4);
  EXPECT_EQ(cancelled_compiles_, std::vector<std::uint64_t>{3}) << "the other one was answered";
  compiled(0, {failure(Code::unavailable, "the request has ended"), 0});
  EXPECT_EQ(submits_.size(), 1u);
}

TEST_F(SessionHostTest, ARequestsTimeIsOverWhileItsFormIsCompiled) {
  open(false, 3, 100, std::chrono::milliseconds(1), {http::AnswerForm::Kind::regex, "a+", "guided_regex"});
  ASSERT_EQ(compiles_.size(), 1u);
  self_->send(host_, Expire{});
  run();
  for (int i = 0; cancelled_compiles_.empty() && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    self_->send(host_, Expire{});
    run();
  }
  EXPECT_EQ(cancelled_compiles_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionHostTest, WithdrawnWhileTheTokenizerWorks) {
  slow_tokenizer_ = true;
  open();
  withdraw();
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  EXPECT_TRUE(submits_.empty());
  EXPECT_TRUE(answers_.empty());
}

TEST_F(SessionHostTest, PromptsOfClientsWhoLeftDoNotPileUpBeforeTheTokenizer) {
  slow_tokenizer_ = true;
  for (std::uint64_t exchange = 1; exchange <= 100; ++exchange) {
    open(false, exchange);
    if (exchange > 1) withdraw(exchange);
  }
  open(false, 101);
  EXPECT_EQ(closed_.size(), 99u);
  EXPECT_EQ(encodes_, (std::vector<std::string>{"r1", "r2"}));
  self_->send_exit(tokenizer_, caf::exit_reason::user_shutdown);
  run();
  EXPECT_EQ(encodes_, (std::vector<std::string>{"r1", "r2", "r101"}));
  self_->send_exit(tokenizer_, caf::exit_reason::user_shutdown);
  run();
  EXPECT_EQ(submits_.size(), 2u);
}

TEST_F(SessionHostTest, LongTextsHaveATokenizerOfTheirOwn) {
  slow_tokenizer_ = true;
  open(false, 1, 8 << 20);
  open(false, 2, 100);
  open(false, 3, 50 << 10);
  EXPECT_EQ(long_encodes_, (std::vector<std::string>{"r1", "r3"}));
  EXPECT_EQ(encodes_, std::vector<std::string>{"r2"});
}

TEST_F(SessionHostTest, AShortTextDoesNotWaitForMiddlingOnes) {
  slow_tokenizer_ = true;
  for (std::uint64_t exchange = 1; exchange <= 8; ++exchange) open(false, exchange, 20 << 10);
  open(false, 9, 100);
  EXPECT_EQ(encodes_, (std::vector<std::string>{"r1", "r2"}));
  self_->send_exit(tokenizer_, caf::exit_reason::user_shutdown);
  run();
  ASSERT_GE(encodes_.size(), 3u);
  EXPECT_EQ(encodes_[2], "r9");
}

TEST_F(SessionHostTest, ARequestEndsAtItsOwnTimeout) {
  open(false, 3, 100, std::chrono::hours(1));
  open(false, 4, 100, std::chrono::nanoseconds(1));
  EXPECT_TRUE(answers_.empty());
  ActorWorld::scheduler_.advance_time(std::chrono::seconds(1));
  run();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].exchange_id, 4u);
  EXPECT_EQ(answers_[0].status, 504);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{4});
}

// Or the requests of a day would fill the memory with deadlines of an hour each.
TEST_F(SessionHostTest, NothingIsLeftOfTheDeadlinesOfRequestsThatHaveEnded) {
  for (std::uint64_t exchange = 1; exchange <= 100; ++exchange) {
    open(false, exchange);
    withdraw(exchange);
  }
  ASSERT_EQ(closed_.size(), 100u);
  const auto left = [&] {
    std::size_t count = 0;
    for (const auto& [due, event] : ActorWorld::scheduler_.clock().schedule()) {
      count += due > ActorWorld::scheduler_.clock().now() + std::chrono::minutes(2);
    }
    return count;
  };
  EXPECT_EQ(left(), 0u);
  ActorWorld::scheduler_.advance_time(std::chrono::minutes(2));
  run();
  EXPECT_LE(ActorWorld::scheduler_.clock().schedule().size(), 1u);
}

TEST_F(SessionHostTest, WithdrawnBeforeTheFirstToken) {
  open();
  withdraw();
  EXPECT_EQ(cancels_, std::vector<RequestKey>{submits_.at(0).sequences.at(0).key});
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionHostTest, WithdrawnInTheMiddleOfAStream) {
  open(true);
  tokens("a", Finish::none);
  ASSERT_EQ(answers_.size(), 1u);
  withdraw();
  EXPECT_EQ(cancels_.size(), 1u);
  tokens("b", Finish::none);
  EXPECT_EQ(answers_.size(), 1u);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionHostTest, WithdrawnAfterTheEndIsNothing) {
  open();
  tokens("x", Finish::length);
  withdraw();
  EXPECT_TRUE(cancels_.empty());
  EXPECT_EQ(closed_.size(), 1u);
}

TEST_F(SessionHostTest, ARefusalOfTheSchedulerIsTheAnswer) {
  verdict_ = failure(Code::overloaded, "the queue is full");
  open();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 429);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionHostTest, WhatIsAbandonedIsToldAndCancelled) {
  open(true, 3);
  tokens("a", Finish::none);
  open(false, 4);
  self_->send(host_, Abandon{});
  run();
  EXPECT_EQ(cancels_.size(), 2u);
  EXPECT_EQ(closed_.size(), 2u);
  std::string stream;
  for (const auto& answer : answers_) {
    if (answer.exchange_id == 3) stream += answer.body;
    if (answer.exchange_id == 4) {
      EXPECT_EQ(answer.status, 503);
    }
  }
  EXPECT_NE(stream.find("shutting down"), std::string::npos);
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
}

TEST_F(SessionHostTest, ALostWorkerIsTryAgain) {
  open();
  tokens("", Finish::aborted, "the worker was lost");
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 503);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionHostTest, ADeadTokenizerFailsTheRequestThatNeedsItAndTheNextFindsANewOne) {
  self_->send_exit(tokenizer_, caf::exit_reason::kill);
  run();
  open();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 500);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  auto fresh = keep(system_.spawn([](tokenizer_actor::pointer) -> tokenizer_actor::behavior_type {
    return {answer_beat, [](const Encode&) {
      Encoded out;
      out.prompts = {{'y'}};
      return out;
    }};
  }));
  self_->send(host_, TokenizerUp{0, fresh});
  run();
  open();
  EXPECT_EQ(submits_.size(), 1u);
}

TEST_F(SessionHostTest, AFaultEndsOneRequestWithItsCredit) {
  for (const char* place : {"new session", "session"}) {
    answers_.clear();
    closed_.clear();
    {
      const testing::ThrownFault fault(place);
      open();
      EXPECT_EQ(fault.thrown(), 1);
    }
    ASSERT_EQ(answers_.size(), 1u) << place;
    EXPECT_EQ(answers_[0].status, 500);
    EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  }
  open(false, 4);
  ASSERT_EQ(submits_.size(), 1u) << "the next one is served";
}

TEST_F(SessionHostTest, AFaultWhileTokensComeEndsThatAnswerAlone) {
  open();
  open(false, 4);
  ASSERT_EQ(submits_.size(), 2u);
  const testing::ThrownFault fault("session");
  tokens("a", Finish::none);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].exchange_id, 3u);
  EXPECT_EQ(answers_[0].status, 500);
  EXPECT_EQ(cancels_.size(), 1u) << "nobody computes it further";
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

}  // namespace
}  // namespace troupe
