// What a front does when a prefill instance's engine, which is no part of its server, sends what it should
// not.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/link/message_codec.h"
#include "actors/topology.h"
#include "support/byte_tokenizer.h"
#include "support/heard_log.h"
#include "support/patience.h"

namespace troupe {
namespace {

class PeerLinkTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kOwn = 0, kPeer = 1;

  /// `remote`: the own engine is on another machine.
  explicit PeerLinkTest(bool remote = false) {
    FrontSetup front;
    for (std::size_t i = 0; i < 2; ++i) {
      fds_.push_back(*ipc::create_link());
      front.engines.push_back(
          std::make_shared<Link>(*ipc::UpperEnd::attach(fds_[i].step.get(), fds_[i].cache.get())));
    }
    front.own_engines = 1;
    if (remote) front.first_remote = 0;
    text_ = *ipc::create_link();
    front.texts.push_back(
        std::make_shared<Link>(*ipc::UpperEnd::attach(text_.step.get(), text_.cache.get())));
    front.sessions = std::make_shared<SessionContext>(
        SessionContext{std::make_shared<testing::ByteTokenizer>(), {}, 64, 258});
    front.health = std::make_shared<HealthCell>();
    front.deliver = [](std::uint32_t, std::vector<http::Output>&&) {};
    front.log = [this](const std::string& actor) {
      return Log::to_sink(actor, std::make_shared<testing::NoFile>(), {}).observed_by(complaint_);
    };
    front.traced = [this](const TracedEvent& event) {
      const std::lock_guard lock(mutex_);
      traced_.push_back(event.event);
    };
    front_ = std::make_unique<FrontSystem>(std::move(front));
  }

  ipc::LowerEnd attach(std::size_t link) {
    return *ipc::LowerEnd::attach(fds_[link].step.get(), fds_[link].cache.get());
  }
  static void trace(Link& link, const std::string& event) {
    link.send(MessageType::trace, 0, encoded_view(TracedEvent{.event = event}));
  }
  /// A record in the place of another one.
  static void send_gap(ipc::LowerEnd& end) {
    wire::RecordWriter<wire::Message> writer;
    writer.begin(end.epoch());
    writer.record().number = 2;
    end.try_send(ipc::Channel::step, writer.finish());
  }
  void reap(std::size_t link) {
    ipc::LinkMonitor::attach(fds_[link].step.get(), fds_[link].cache.get())->reaped(ipc::Side::lower);
  }
  std::vector<std::string> traced() {
    const std::lock_guard lock(mutex_);
    return traced_;
  }
  template <class Condition>
  static bool wait(Condition condition) {
    const TimePoint end = Clock::now() + test::kPatience;
    while (!condition() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return condition();
  }
  /// The front has found the link to be broken.
  bool complained() {
    return wait([this] { return complaint_->heard.load(); });
  }

  struct Complaint final : LogObserver {
    void event(std::string_view, std::string_view event, std::span<const LogField>) override {
      if (event == "link_broken") heard = true;
    }
    std::atomic<bool> heard{false};
  };

  std::shared_ptr<Complaint> complaint_ = std::make_shared<Complaint>();
  std::vector<ipc::LinkFds> fds_;
  ipc::LinkFds text_;
  std::mutex mutex_;
  std::vector<std::string> traced_;  // guarded by mutex_
  std::unique_ptr<FrontSystem> front_;
};

TEST_F(PeerLinkTest, TheServersOwnEngineIsTrustedOrTheFrontEnds) {
  ipc::LowerEnd end = attach(kOwn);
  send_gap(end);
  EXPECT_TRUE(wait([this] { return !front_->alive(); }));
}

TEST_F(PeerLinkTest, ABrokenRingIsLeftUntilTheNextProcess) {
  {
    ipc::LowerEnd end = attach(kPeer);
    send_gap(end);
    ASSERT_TRUE(complained());
  }
  reap(kPeer);
  Link next(attach(kPeer));
  trace(next, "of the next");
  EXPECT_TRUE(wait([this] { return !traced().empty(); }));
  EXPECT_TRUE(front_->alive()) << front_->why();
}

TEST_F(PeerLinkTest, AMessageThatNoEngineSendsEndsTheTrustInItsProcess) {
  {
    Link link(attach(kPeer));
    trace(link, "first");
    ASSERT_TRUE(wait([this] { return traced().size() == 1; }));
    link.send(MessageType::submit, 0, {});
    trace(link, "second");
    ASSERT_TRUE(complained());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it would be heard in less
  }
  reap(kPeer);
  Link next(attach(kPeer));
  trace(next, "third");
  EXPECT_TRUE(wait([this] { return traced().size() == 2; }));
  EXPECT_EQ(traced(), (std::vector<std::string>{"first", "third"}));
  EXPECT_TRUE(front_->alive()) << front_->why();
}

class RemoteLinkTest : public PeerLinkTest {
 protected:
  RemoteLinkTest() : PeerLinkTest(/*remote=*/true) {}
};

TEST_F(RemoteLinkTest, AnEngineOnAnotherMachineThatSendsNonsenseLosesItsConnectionAlone) {
  ipc::LowerEnd end = attach(kOwn);
  send_gap(end);
  // As the front would have it of an engine that has ended: the relay sees the new epoch and ends the
  // connection.
  EXPECT_TRUE(wait([&] { return end.LinkMonitor::epoch() == 2; }));
  EXPECT_EQ(end.receive(Clock::now() + test::kPatience).kind, ipc::Received::Kind::epoch_changed);
  Link next(std::move(end));
  next.send(MessageType::submit, 0, {});  // which only a front sends
  EXPECT_TRUE(wait([&] { return next.end().LinkMonitor::epoch() == 3; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(front_->alive()) << front_->why();
}

TEST_F(RemoteLinkTest, AnEngineThatIsNotThereIsNotAsked) {
  EXPECT_FALSE(front_->engine_actors(std::chrono::seconds(5)).ok());  // at once
  const auto monitor = ipc::LinkMonitor::attach(fds_[kOwn].step.get(), fds_[kOwn].cache.get());
  EXPECT_TRUE(wait([&] { return monitor->depths()[0].records > 0; })) << "the greeting waits for it";
  EXPECT_EQ(monitor->depths()[0].records, 1u) << "and nothing else";
}

}  // namespace
}  // namespace troupe
