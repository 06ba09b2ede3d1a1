#pragma once
// The work of a text process: takes Encodes from the link to a front and answers each. A thread for each
// TextLane encodes, so that a short prompt waits for no long one, and a client's long one for none of a
// batch. It holds nothing between two requests.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "actors/engine/watchdog.h"
#include "actors/link/link.h"
#include "actors/messages.h"
#include "actors/tokenizer/encoder.h"
#include "base/log.h"
#include "base/pulse.h"
#include "base/work_pulse.h"

namespace troupe {

class TextServer {
 public:
  /// Greets and begins to answer. `link` is the lower end. `log` hears of faults, and of prompts where their
  /// texts are logged.
  TextServer(std::shared_ptr<Link> link, Encoder encoder, std::string build, Log log);
  /// Ends after the jobs that are at work; the front asks the others again.
  ~TextServer();
  TextServer(const TextServer&) = delete;
  TextServer& operator=(const TextServer&) = delete;

  /// Gives a sign of life on the link unless a part of the process stands still. Call it at least eight times
  /// a second, from one thread.
  void beat();

  /// The part that stands still, as of the last beat(). Empty: none does.
  std::string silent() const;

 private:
  struct Job {
    std::uint64_t number = 0;
    std::uint32_t epoch = 0;
    Bytes encode;
  };
  /// Jobs of one TextLane and the thread that does them.
  struct Lane {
    std::mutex mutex;
    std::condition_variable_any more;
    std::deque<Job> jobs;  // guarded by mutex
    WorkPulse pulse;
    std::jthread thread;
  };

  void receive(const std::stop_token& stop);
  void greet();
  void arrived(const Arrival& arrival);
  void forget();
  Lane& lane(TextLane of) { return lanes_[static_cast<std::size_t>(of)]; }
  void work(Lane& lane, const std::stop_token& stop);
  void answer(const Job& job);
  void log_prompts(const std::string& request_id, const Encoded& encoded) const;

  const std::shared_ptr<Link> link_;
  const Encoder encoder_;
  const std::string build_;
  const Log log_;
  Watchdog watchdog_;
  Pulse receiver_pulse_;
  std::array<Lane, kTextLanes> lanes_;
  std::jthread receiver_;
};

}  // namespace troupe
