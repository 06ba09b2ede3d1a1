#include "actors/grammar/compile_process.h"

#include <malloc.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <utility>

#include "actors/grammar/frames.h"
#include "base/clock.h"
#include "config/child_environment.h"

namespace troupe {
namespace {

/// True when so much time has passed from now on.
std::function<bool()> after(std::chrono::milliseconds limit) {
  return [end = Clock::now() + limit] { return Clock::now() >= end; };
}

/// True when a thread of the process runs, or waits for the processor or the disk.
bool has_active_thread(pid_t pid) {
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::ifstream stat(task.path() / "stat");
    std::string line;
    std::getline(stat, line);
    const std::size_t name_end = line.rfind(')');
    const char state = name_end == line.npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
    if (state == 'R' || state == 'D') return true;
  }
  return false;
}

CompileOutcome refused(Status status) { return {std::move(status), nullptr}; }

CompileOutcome too_complex(const std::string& why) {
  return refused(invalid(why, {}, "grammar_too_complex"));
}

}  // namespace

grammar::TokenTable FormVocabulary::table() const {
  const std::lock_guard lock(mutex_);
  if (!table_) {
    table_.emplace(make_());
    ::malloc_trim(0);  // what it took to make it is several times its size
  }
  return *table_;
}

Status CompileProcess::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return failure(Code::internal, "no socket for the process that compiles grammars");
  }
  socket_.reset(ends[0]);
  ipc::Fd other(ends[1]);
  auto child = supervisor::ChildProcess::start(
      executable_, {"grammar", "--fd=" + std::to_string(other.get())}, {other.get()},
      config::child_environment(config::ChildKind::grammar, config::process_environment()));
  if (!child.ok()) return child.status();
  child_ = *std::move(child);
  other.reset();  // so that the child's end closes with the child
  ++starts_;
  since_ = Clock::now();
  std::string ready;
  const auto late = [this, over = after(limits_.start)] { return over() || stands_still(); };
  const bool begun =
      frames::write(socket_.get(), vocabulary_->bytes(), late, &given_up_) == frames::Outcome::done;
  if (begun) (void)vocabulary_->table();  // while the child makes its own
  if (!begun || frames::read(socket_.get(), ready, late, &given_up_) != frames::Outcome::done) {
    stop();
    return failure(Code::unavailable, "the process that compiles grammars did not start");
  }
  return {};
}

/// False when the child has not taken the bytes within the limit, or is gone.
bool CompileProcess::give(std::string_view bytes, std::chrono::milliseconds limit) {
  const auto late = [this, over = after(limit)] { return over() || stands_still(); };
  return frames::write(socket_.get(), bytes, late, &given_up_) == frames::Outcome::done;
}

void CompileProcess::stop() {
  socket_.reset();
  if (!child_.running()) return;
  child_.kill(SIGKILL);
  child_.reap();
}

/// What the child has used so far; zero if it has gone.
Duration CompileProcess::processor_time() const {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(child_.pid(), &clock) != 0 || clock_gettime(clock, &used) != 0) return {};
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

/// True when the child has used no processor for so long that it stands still. Called several times a second
/// while the child has work. On a busy machine it waits for the processor, or for the disk.
bool CompileProcess::stands_still() {
  const Duration used = processor_time();
  const TimePoint now = Clock::now();
  if (used == used_ && now - since_ < limits_.standstill) return false;
  if (used == used_ && !has_active_thread(child_.pid())) return true;
  used_ = used;
  since_ = now;
  return false;
}

CompileOutcome CompileProcess::compile(const grammar::Source& source, bool& lasting) {
  const std::string job = frames::to_bytes(source);
  for (int attempts = 0; attempts < 2; ++attempts) {
    lasting = false;
    if (!child_.running()) {
      if (Status status = start(); !status.ok()) return refused(std::move(status));
    }
    if (auto outcome = attempt(job, lasting)) return *std::move(outcome);
    stop();
    if (given_up_) break;
  }
  return refused(failure(Code::unavailable, "the process that compiles grammars does not work"));
}

/// Nothing when the child died before it had taken the job, or stands still.
std::optional<CompileOutcome> CompileProcess::attempt(const std::string& job, bool& lasting) {
  since_ = Clock::now();
  if (!give(job, limits_.take)) return std::nullopt;
  std::string answer;
  const Duration used = processor_time();
  const TimePoint end = Clock::now() + limits_.patience * limits_.time;
  bool used_up = false, still = false;
  const auto exceeded = [&] {
    used_up = processor_time() - used >= limits_.time;
    still = !used_up && stands_still();
    return used_up || still || Clock::now() >= end;
  };
  switch (frames::read(socket_.get(), answer, exceeded, &given_up_)) {
    case frames::Outcome::timeout:
      if (still) return std::nullopt;
      stop();
      lasting = used_up;  // by the clock alone it may have been other work on the machine
      return too_complex("is too complex: compiling it takes longer than " +
                         std::to_string(limits_.time.count()) + " ms");
    case frames::Outcome::closed:
      stop();
      if (given_up_) return refused(failure(Code::unavailable, "the server is shutting down"));
      lasting = true;
      return too_complex("is too complex: the process that compiled it broke down");
    case frames::Outcome::done: break;
  }
  std::string_view bytes;
  if (Status status = frames::answer_from_bytes(answer, bytes); !status.ok()) {
    lasting = status.code == Code::invalid_argument;
    return refused(std::move(status));
  }
  auto form = grammar::CompiledForm::from_bytes(vocabulary_->table(), bytes);
  if (!form.ok()) return refused(form.status());
  lasting = true;
  return CompileOutcome{{}, *std::move(form)};
}

}  // namespace troupe
