#include "model/card_check/check_card.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/spawn.h"
#include "model/card_check/check_lines.h"

namespace troupe::model {
namespace {

int number_in(const std::string& word) {
  int number = -1;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return number;
}

/// How a process ended, for a check that it did not finish.
std::string ending(int status) {
  if (WIFSIGNALED(status))
    return std::string("the process was ended by signal ") + std::to_string(WTERMSIG(status));
  return "the process ended with status " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/// A process that checks; killed with the object if it still runs.
class Worker {
 public:
  explicit Worker(CheckProcess process) : process_(std::move(process)) {}
  ~Worker() {
    if (process_.pid > 0) end();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  enum class Next { line, ended, silent };

  /// The next line within the time, without its newline.
  Next next(std::string& line, std::chrono::milliseconds patience) {
    const TimePoint deadline = Clock::now() + patience;
    for (;;) {
      if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
        line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return Next::line;
      }
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd waits{process_.lines.get(), POLLIN, 0};
      const int ready = ::poll(&waits, 1, static_cast<int>(std::max<std::int64_t>(0, left)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return Next::silent;
      char bytes[4096];
      const ssize_t count = ::read(process_.lines.get(), bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0 || pending_.size() > kMostPending) return Next::ended;
      pending_.append(bytes, static_cast<std::size_t>(count));
    }
  }

  /// Kills the process if it still runs, and says how it ended.
  std::string end() {
    ::kill(process_.pid, SIGKILL);
    int status = 0;
    while (::waitpid(process_.pid, &status, 0) < 0 && errno == EINTR) {
    }
    process_.pid = -1;
    return ending(status);
  }
  /// Waits for the process to end by itself; its pipe has ended.
  std::string wait(std::chrono::milliseconds patience) {
    const TimePoint deadline = Clock::now() + patience;
    int status = 0;
    for (;;) {
      const pid_t ended = ::waitpid(process_.pid, &status, WNOHANG);
      if (ended == process_.pid) break;
      if ((ended < 0 && errno != EINTR) || Clock::now() > deadline) return end();
      ::poll(nullptr, 0, 2);
    }
    process_.pid = -1;
    return ending(status);
  }

 private:
  static constexpr std::size_t kMostPending = 1 << 20;

  CheckProcess process_;
  std::string pending_;
};

/// All checks once, without some kernels.
class Round {
 public:
  Round(int ordinal, KernelWays avoided, const StartChecks& start, const CheckLimits& limits, int& deaths,
        const std::function<void(const CheckedOp&)>& report)
      : order_{.ordinal = ordinal, .avoided = avoided},
        start_(start),
        limits_(limits),
        deaths_(deaths),
        report_(report) {}

  /// The checks' number. Failures are in failures() afterwards.
  Result<int> run() {
    while (count_ < 0) {
      if (deaths_ > limits_.most_deaths) {
        return failure(Code::unavailable, "The check of GPU " + std::to_string(order_.ordinal) +
                                              " was given up after " + std::to_string(deaths_) +
                                              " of its processes had crashed or hung, at last in " +
                                              current_.op + " (" + current_.what + ").");
      }
      if (Status s = run_process(); !s.ok()) return s;
    }
    return count_;
  }
  const std::vector<CheckFailure>& failures() const { return failures_; }

 private:
  Status run_process() {
    Result<CheckProcess> started = start_(order_);
    if (!started) return started.status();
    Worker worker(*std::move(started));
    const int first = order_.first;
    running_ = false;
    std::string text;
    for (;;) {
      const bool begun = running_ || order_.first > first;
      const Worker::Next next = worker.next(text, begun ? limits_.each : limits_.start);
      if (next == Worker::Next::line) {
        const std::optional<CheckLine> line = read_check_line(text);
        if (!line) continue;  // a library's own words
        if (Status s = take(*line); !s.ok()) return s;
        if (count_ >= 0) return {};
        continue;
      }
      const std::string how = next == Worker::Next::silent ? "it hangs" : worker.wait(limits_.each);
      if (next == Worker::Next::silent) worker.end();
      // Behind a fault that it has reported a process ends, and the next one goes on.
      if (!running_ && order_.first > first) return {};
      ++deaths_;
      if (!running_)
        return failure(Code::unavailable,
                       "The check of GPU " + std::to_string(order_.ordinal) + " did not begin: " + how + ".");
      conclude(0, how);
      return {};
    }
  }

  Status take(const CheckLine& line) {
    const std::vector<std::string>& words = line.words;
    switch (line.event) {
      case CheckEvent::begins: {
        running_ = true;
        order_.first = number_in(words[0]);
        current_ = {words[1], words[2], words[4], {}, read_kernel_way(words[5])};
        needs_ = words[3];
        return {};
      }
      case CheckEvent::right:
      case CheckEvent::wrong:
        if (running_)
          conclude(number_in(words[1]), line.event == CheckEvent::wrong ? words[2] : std::string());
        return {};
      case CheckEvent::unusable: return failure(static_cast<Code>(number_in(words[0])), words[1]);
      case CheckEvent::ends: count_ = number_in(words[0]); return {};
    }
    return {};
  }

  /// The current check is right without a reason, and wrong with one.
  void conclude(int milliseconds, const std::string& reason) {
    running_ = false;
    ++order_.first;
    current_.reason = reason;
    const bool right = reason.empty();
    if (!right && !wrong_ops_.contains(needs_)) failures_.push_back(current_);
    if (!right) wrong_ops_.insert(current_.op);
    if (report_)
      report_({current_.op, current_.what, current_.way, milliseconds, right, reason, order_.avoided});
  }

  CheckOrder order_;
  const StartChecks& start_;
  const CheckLimits& limits_;
  int& deaths_;
  const std::function<void(const CheckedOp&)>& report_;
  std::vector<CheckFailure> failures_;
  std::set<std::string> wrong_ops_;
  CheckFailure current_;
  std::string needs_;
  bool running_ = false;  // a check has begun and not ended
  int count_ = -1;
};

}  // namespace

StartChecks checks_by(std::string executable, std::vector<std::string> environment) {
  return [executable = std::move(executable),
          environment = std::move(environment)](const CheckOrder& order) -> Result<CheckProcess> {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      return failure(Code::internal, std::string("no pipe for a check of the GPU: ") + std::strerror(errno));
    OwnedFd lines(ends[0]), written(ends[1]);
    const Result<pid_t> pid =
        spawn({.executable = executable,
               .arguments = {"troupe", "check-gpu", "--worker", "--device", std::to_string(order.ordinal),
                             "--first", std::to_string(order.first), "--avoid", to_string(order.avoided)},
               .environment = environment,
               .output = written.get(),
               .death_signal = SIGKILL});
    if (!pid) return pid.status();
    return CheckProcess{*pid, std::move(lines)};
  };
}

Result<CardCheck> check_card(int ordinal, const StartChecks& start, const CheckLimits& limits,
                             const std::function<void(const CheckedOp&)>& report) {
  const TimePoint begin = Clock::now();
  CardCheck made;
  int deaths = 0;
  for (;;) {
    Round round(ordinal, made.avoided, start, limits, deaths, report);
    const Result<int> count = round.run();
    if (!count) return count.status();
    made.checks = *count;
    made.usable = round.failures().empty();
    bool more = false;
    for (const CheckFailure& failure : round.failures()) {
      if (failure.avoidable && !made.avoided.contains(*failure.avoidable)) {
        made.avoided.add(*failure.avoidable);
        more = true;
      }
      made.failures.push_back(failure);
    }
    if (more) continue;
    made.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return made;
  }
}

}  // namespace troupe::model
