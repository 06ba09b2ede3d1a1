#include "actors/gateway/gateway_actor.h"

#include "support/actor_world.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

using State = http::Health::State;

class GatewayTest : public testing::ActorWorld {
 protected:
  GatewayTest() {
    host_ = keep(system_.spawn([this](session_host_actor::pointer self) -> session_host_actor::behavior_type {
      return {
          answer_beat,
          [this, self](Ask& ask) {
            asks_.push_back(ask.exchange);
            heard_.push_back("ask " + std::to_string(ask.exchange));
            promises_.push_back(self->make_response_promise<Closed>());
            return promises_.back();
          },
          [this](const Withdraw& gone) {
            // Stands for the end of the session too: a promise is kept inside its actor.
            heard_.push_back("withdraw " + std::to_string(gone.exchange));
            for (std::size_t i = 0; i < asks_.size(); ++i) {
              if (asks_[i] == gone.exchange) promises_[i].deliver(Closed{gone.exchange});
            }
          },
          [](const StepTokens&) {},
          [](const Expire&) {},
          [](const Resume&) {},
          [this](const Abandon&) {
            for (std::size_t i = 0; i < asks_.size(); ++i) promises_[i].deliver(Closed{asks_[i]});
          },
          [](const EngineUp&) {},
          [](const EngineDown&) {},
          [](const Refused&) {},
          [](const RetryAlone&) {},
          [](const WaitedForEngine&) {},
      };
    }));
    metrics_ = keep(system_.spawn([](metrics_actor::pointer) -> metrics_actor::behavior_type {
      return {answer_beat,
              [](const StepStats&) {},
              [](const RequestStats&) {},
              [](const HttpStats&) {},
              [](const DoorStats&) {},
              [](const MediaStats&) {},
              [](const ProcessReports&) {},
              [](caf::get_atom) { return std::string("m 1\n"); }};
    }));
    cache_ = keep(system_.spawn([this](cache_actor::pointer) -> cache_actor::behavior_type {
      return {answer_beat,
              [](const CacheAsks&) { return CacheGrants(); },
              [](const CacheReport&) {},
              [](const LinkUp&) {},
              [](const FrontExpects&) {},
              [](const ForgetBlocks&) {},
              [](const FrontLost&) {},
              [](const CopyAhead&) {},
              [this](const ResetPrefixCache&) {
                heard_.push_back("reset");
                return std::int32_t{7};
              },
              [](caf::get_atom) { return CacheStatus(); }};
    }));
    GatewayParts parts{{host_}, metrics_, {cache_}, health_, {}, "{}", 2, 1, {}};
    parts.deliver = [this](std::uint32_t, std::vector<http::Output>&& outputs) {
      for (auto& output : outputs) answers_.push_back(std::move(output));
    };
    gateway_ = keep(system_.spawn(gateway_behavior, std::move(parts)));
    run();
  }

  void inform(std::uint64_t exchange, http::InfoRequest::Kind kind) {
    self_->send(gateway_, InfoAsk{0, exchange, "r", kind});
    run();
  }
  void send(std::uint64_t exchange) {
    Ask ask;
    ask.exchange = exchange;
    self_->send(gateway_, ask);
    run();
  }
  void close(std::uint64_t exchange) {
    self_->send(host_, Withdraw{0, exchange});
    run();
  }
  /// Starts a drain; the result becomes true when it has ended.
  const bool& drain() {
    keep(system_.spawn([this](caf::event_based_actor* self) -> caf::behavior {
      self->request(gateway_, caf::infinite, Drain{}).then([this](bool done) { drained_ = done; });
      return {[](int) {}};
    }));
    run();
    return drained_;
  }
  void link_up() {
    self_->send(gateway_, TextUp{0});
    self_->send(gateway_, EngineServes{0, true});
    run();
  }

  std::vector<std::uint64_t> asks_;
  std::vector<std::string> heard_;  // by the session host, in order
  std::vector<caf::typed_response_promise<Closed>> promises_;
  std::vector<http::Output> answers_;
  bool drained_ = false;
  std::shared_ptr<HealthCell> health_ = std::make_shared<HealthCell>();
  session_host_actor host_;
  metrics_actor metrics_;
  cache_actor cache_;
  gateway_actor gateway_;
};

TEST_F(GatewayTest, EmptiesThePrefixCacheAndSaysHowManyBlocksItForgot) {
  inform(1, http::InfoRequest::Kind::reset_prefix_cache);
  EXPECT_EQ(heard_, std::vector<std::string>{"reset"});
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 200);
  EXPECT_EQ(answers_[0].body, R"({"forgotten_blocks":7})");
}

TEST_F(GatewayTest, RefusesUntilTheWorkerIsThere) {
  EXPECT_EQ(health_->get(), State::loading);
  send(1);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 503);
  self_->send(gateway_, EngineServes{0, true});
  run();
  EXPECT_EQ(health_->get(), State::loading) << "no text process has come";
  link_up();
  EXPECT_EQ(health_->get(), State::ready);
  send(2);
  EXPECT_EQ(asks_, std::vector<std::uint64_t>{2});
}

TEST_F(GatewayTest, ACreditIsHeldUntilTheSessionHasClosed) {
  link_up();
  send(1);
  send(2);
  send(3);
  EXPECT_EQ(asks_, (std::vector<std::uint64_t>{1, 2}));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 429);
  close(1);
  send(4);
  EXPECT_EQ(asks_.back(), 4u);
}

TEST_F(GatewayTest, AdmitsWhileTheEngineIsReplaced) {
  link_up();
  self_->send(gateway_, EngineServes{0, false});
  run();
  EXPECT_EQ(health_->get(), State::restarting);
  send(1);
  EXPECT_EQ(asks_, (std::vector<std::uint64_t>{1}));
  EXPECT_TRUE(answers_.empty());
  link_up();
  EXPECT_EQ(health_->get(), State::ready);
}

TEST_F(GatewayTest, ADrainEndsWithTheLastOpenRequest) {
  link_up();
  send(1);
  const bool& drained = drain();
  EXPECT_EQ(health_->get(), State::draining);
  send(2);
  EXPECT_EQ(answers_.at(0).status, 503);
  EXPECT_FALSE(drained);
  close(1);
  EXPECT_TRUE(drained);
}

TEST_F(GatewayTest, ADrainWhoseTimeIsUpEndsWhatIsOpen) {
  link_up();
  send(1);
  const bool& drained = drain();
  EXPECT_FALSE(drained);
  self_->send(gateway_, Abandon{});
  run();
  EXPECT_TRUE(drained);
}

TEST_F(GatewayTest, AWithdrawalFollowsItsAsk) {
  link_up();
  Ask ask;
  ask.exchange = 8;
  self_->send(gateway_, ask);
  self_->send(gateway_, Withdraw{0, 8});
  run();
  EXPECT_EQ(heard_, (std::vector<std::string>{"ask 8", "withdraw 8"}));
}

TEST_F(GatewayTest, AnAskHasADeadlineThatEndsWithIt) {
  link_up();
  for (std::uint64_t exchange = 1; exchange <= 50; ++exchange) {
    send(exchange);
    close(exchange);
  }
  EXPECT_EQ(asks_.size(), 50u);
  EXPECT_TRUE(scheduler_.clock().schedule().empty()) << "answered";
  send(99);
  EXPECT_EQ(scheduler_.clock().schedule().size(), 1u);
  scheduler_.advance_time(kAfterTimeout +
                          std::chrono::seconds(1));  // beyond the request's own timeout, which is 0 here
  run();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 500);
  EXPECT_EQ(heard_.back(), "withdraw 99");
  EXPECT_EQ(ask<EngineStatus>(gateway_, caf::get_atom::value).open_requests, 0);
}

TEST_F(GatewayTest, ALostSessionHostAnswersWithAnError) {
  link_up();
  self_->send_exit(host_, caf::exit_reason::kill);
  run();
  send(1);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 500);
  EXPECT_EQ(ask<EngineStatus>(gateway_, caf::get_atom::value).open_requests, 0);
}

TEST_F(GatewayTest, ServesMetricsWhileLoading) {
  inform(1, http::InfoRequest::Kind::metrics);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].body, "m 1\n");
  EXPECT_EQ(answers_[0].content, http::Output::Content::metrics);
}

TEST_F(GatewayTest, AFaultEndsOneRequestAndHoldsNoPlace) {
  link_up();
  for (std::uint64_t exchange = 1; exchange <= 5; ++exchange) {  // more than there are places
    const testing::ThrownFault fault("gateway");
    send(exchange);
    ASSERT_EQ(answers_.size(), exchange);
    EXPECT_EQ(answers_.back().status, 500);
  }
  send(6);
  EXPECT_EQ(asks_, std::vector<std::uint64_t>{6});
}

}  // namespace
}  // namespace troupe
