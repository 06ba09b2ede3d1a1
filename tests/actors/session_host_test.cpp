// Cancellation at every stage of a request, with the neighbours of SESSION HOST played by the test.
#include "actors/session_host_rig.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

using SessionHostTest = testing::SessionHostRig;

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

TEST_F(SessionHostTest, AnImageIsMeasuredDecodedAndReleased) {
  open(false, 3, 900'000, std::chrono::hours(1), {}, std::string(900'000, 'A'));
  ASSERT_EQ(measures_.size(), 1u);
  EXPECT_EQ(measures_[0].client, "net:somebody");
  EXPECT_EQ(encodes_, std::vector<std::string>{"r3"}) << "its text is short";
  ASSERT_EQ(encoded_media_.size(), 1u);
  EXPECT_EQ(encoded_media_[0].size(), 1u);
  EXPECT_EQ(prepares_, std::vector<std::uint64_t>{3});
  ASSERT_EQ(submits_.size(), 1u);
  ASSERT_EQ(submits_[0].sequences[0].media.size(), 1u);
  EXPECT_EQ(submits_[0].sequences[0].media[0].place.generation, 7u);
  EXPECT_TRUE(media_released_.empty());
  tokens("ok", Finish::length);
  EXPECT_EQ(media_released_, std::vector<std::uint64_t>{3});
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionHostTest, ARefusedImageEndsItsRequestBeforeItsTextIsRead) {
  measured_ = {invalid("messages.0.content.0 is a BMP picture", "messages.0.content.0", "unsupported_image"),
               {}};
  open(false, 3, 100, std::chrono::hours(1), {}, "AAAA");
  EXPECT_TRUE(encodes_.empty());
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 400);
  EXPECT_EQ(media_released_, std::vector<std::uint64_t>{3});
  measured_ = {{}, {{MediaKind::image, kGrid}}};
  prepared_ = {failure(Code::overloaded, "memory is full"), {}};
  open(false, 4, 100, std::chrono::hours(1), {}, "AAAA");
  EXPECT_EQ(encodes_, std::vector<std::string>{"r4"});
  EXPECT_TRUE(submits_.empty());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[1].status, 429);
  EXPECT_EQ(media_released_, (std::vector<std::uint64_t>{3, 4}));
}

TEST_F(SessionHostTest, WhereTheModelDoesNotSeeAnImageEndsItsRequest) {
  parts_.media = nullptr;
  host_ = keep(system_.spawn(session_host_behavior, parts_));
  up(1);
  open(false, 3, 100, std::chrono::hours(1), {}, "AAAA");
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 400);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
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

TEST_F(SessionHostTest, LongTextsDoNotWaitForShortOnesNorTheseForThem) {
  slow_tokenizer_ = true;
  open(false, 1, 8 << 20);
  open(false, 2, 100);
  open(false, 3, 50 << 10);
  EXPECT_EQ(long_encodes_, (std::vector<std::string>{"r1", "r3"}));
  EXPECT_EQ(encodes_, std::vector<std::string>{"r2"});
}

TEST_F(SessionHostTest, LongTextsOfClientsDoNotWaitForThoseOfBatches) {
  slow_tokenizer_ = true;
  const auto open_of_batch = [this](std::uint64_t exchange, std::int64_t bytes) {
    open(false, exchange, bytes, std::chrono::hours(1), {}, {}, true);
  };
  for (std::uint64_t exchange = 1; exchange <= 3; ++exchange) open_of_batch(exchange, 8 << 20);
  open(false, 4, 50 << 10);
  open_of_batch(5, 100);
  EXPECT_EQ(background_encodes_, (std::vector<std::string>{"r1", "r2"}));
  EXPECT_EQ(long_encodes_, std::vector<std::string>{"r4"});
  EXPECT_EQ(encodes_, std::vector<std::string>{"r5"});
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
