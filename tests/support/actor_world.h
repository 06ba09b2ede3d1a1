#pragma once
// A deterministic actor system for tests: one thread, no clock of its own; actors run only in run().
#include <gtest/gtest.h>

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

namespace troupe::testing {

struct TestSystemConfig : caf::actor_system_config {
  TestSystemConfig() {
    set("scheduler.policy", caf::atom("testing"));
    set("logger.verbosity", caf::atom("quiet"));
  }
};

class ActorWorld : public ::testing::Test {
 protected:
  ~ActorWorld() override {
    for (auto it = spawned_.rbegin(); it != spawned_.rend(); ++it) {
      self_->send_exit(*it, caf::exit_reason::kill);
    }
    run();
  }

  /// Delivers all queued messages, and those that they cause.
  void run() { scheduler_.run(); }

  /// Makes an actor end with the test.
  template <class Handle>
  Handle keep(Handle handle) {
    spawned_.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }

  /// Sends a request, runs the actors and returns the answer. Fails the test when there is no answer.
  template <class Answer, class Handle, class Message>
  Answer ask(const Handle& handle, const Message& message) {
    Answer out{};
    auto pending = self_->request(handle, caf::infinite, message);
    run();
    pending.receive([&](const Answer& answer) { out = answer; },
                    [&](const caf::error& error) { ADD_FAILURE() << system_.render(error); });
    return out;
  }

  TestSystemConfig config_;
  caf::actor_system system_{config_};
  caf::scheduler::test_coordinator& scheduler_ =
      dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  caf::scoped_actor self_{system_};

 private:
  std::vector<caf::actor> spawned_;
};

}  // namespace troupe::testing
