#include "actors/grammar/form_process.h"

#include <malloc.h>
#include <signal.h>
#include <sys/socket.h>

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

}  // namespace

grammar::TokenTable FormVocabulary::table() const {
  const std::lock_guard lock(mutex_);
  if (!table_) {
    table_.emplace(grammar::vocabulary_of(*texts_, size_, stop_ids_));
    ::malloc_trim(0);  // what it took to make it is several times its size
  }
  return *table_;
}

bool FormVocabulary::has_table() const {
  const std::lock_guard lock(mutex_);
  return table_.has_value();
}

Result<grammar::Source> FormProcess::check(const grammar::Form& form, bool& lasting) {
  Result<grammar::Source> out = failure(Code::internal, "a form was not checked");
  Status status = ask(
      Work::check, frames::to_job(form),
      [&](const frames::Answer& answer) {
        if (!answer.status.ok()) {
          if (answer.status.code == Code::internal)
            setup_.log.error("fault", {kv("place", "form check"), kv("what", answer.status.message)});
          out = answer.status;
          return true;
        }
        auto source = frames::source_from_bytes(answer.rest);
        if (source) out = *std::move(source);
        return source.has_value();
      },
      lasting);
  if (status.ok()) {
    lasting = out.ok() || out.status().code == Code::invalid_argument;
    return out;
  }
  status.message = form.param + " " + status.message;
  status.param = form.param;
  return status;
}

CompileOutcome FormProcess::compile(const grammar::Source& source, bool& lasting) {
  CompileOutcome out;
  const auto read = [&](const frames::Answer& answer) {
    out.status = answer.status;
    if (!out.status.ok()) return true;
    auto form = grammar::CompiledForm::from_bytes(setup_.vocabulary->table(), answer.rest);
    if (form.ok()) out.form = *std::move(form);
    return form.ok();
  };
  if (Status status = ask(Work::compile, frames::to_job(source), read, lasting); !status.ok())
    return {std::move(status), nullptr};
  lasting = out.status.ok() || out.status.code == Code::invalid_argument;
  return out;
}

/// Not ok: there was no answer. The message begins within the form.
Status FormProcess::ask(Work work, const std::string& job, const Reader& read, bool& lasting) {
  lasting = false;
  int broken = 0;
  End end = End::answered;
  for (int attempts = 0; attempts < 2; ++attempts) {
    if (child_.running() && child_.has_ended()) stop();  // between two forms, of which none is to blame
    if (!child_.running()) {
      Status status = start();
      if (!status.ok() && attempts == 0 && !given_up_) continue;
      if (!status.ok()) return status;
    }
    bool used_up = false;
    end = attempt(work, job, read, used_up);
    if (end == End::answered) return {};
    if (given_up_) return failure(Code::unavailable, "is not compiled: the server is shutting down");
    static constexpr const char* kNames[] = {"answered", "slow", "killed", "broken", "still"};
    setup_.log.error("form_process_replaced", {kv("at", work == Work::check ? "check" : "compile"),
                                               kv("why", kNames[static_cast<int>(end)])});
    broken += end == End::broken ? 1 : 0;
    if (end == End::slow) {
      lasting = used_up;  // by the clock alone it may have been other work on the machine
      break;
    }
  }
  if (broken == 2) lasting = true;
  return refusal(work, end);
}

Status FormProcess::refusal(Work work, End last) const {
  const bool checks = work == Work::check;
  switch (last) {
    case End::slow:
      return invalid("is too complex: " + std::string(checks ? "checking" : "compiling") +
                         " it takes longer than " + std::to_string(setup_.times.time.count()) + " ms",
                     {}, "grammar_too_complex");
    case End::broken:
      return invalid("is too complex: two processes that were to " +
                         std::string(checks ? "check" : "compile") + " it have broken down",
                     {}, "grammar_too_complex");
    default:
      return failure(Code::unavailable,
                     "cannot be " + std::string(checks ? "checked" : "compiled") +
                         ": two processes have ended or stood still at it; try again later");
  }
}

Status FormProcess::start() {
  const auto failed = [](const std::string& why) {
    return failure(Code::unavailable, "cannot be compiled: " + why + "; try again later");
  };
  auto child = supervisor::ChildProcess::start_with_socket(
      setup_.executable, {"text", "--forms"},
      config::child_environment(config::ChildKind::text, config::process_environment()), socket_);
  if (!child.ok()) return failed(child.status().message);
  child_ = *std::move(child);
  sorted_ = false;
  since_ = Clock::now();
  const FormVocabulary& vocabulary = *setup_.vocabulary;
  const frames::Rules rules{setup_.any_whitespace, setup_.form_limits, vocabulary.size(),
                            vocabulary.stop_ids()};
  std::string ready;
  const auto late = [this, over = after(setup_.times.start)] { return over() || stands_still(); };
  const auto say = [&](std::string_view bytes) {
    return frames::write(socket_.get(), bytes, late, &given_up_) == frames::Outcome::done;
  };
  if (say(frames::to_bytes(rules)) && say(vocabulary.texts().bytes()) &&
      frames::read(socket_.get(), ready, late, &given_up_) == frames::Outcome::done)
    return {};
  stop();
  return failed("the process that does it did not start");
}

FormProcess::End FormProcess::attempt(Work work, const std::string& job, const Reader& read, bool& used_up) {
  if (work == Work::compile && !sorted_) {
    if (const End end = sort_vocabulary(); end != End::answered) return end;
  }
  since_ = Clock::now();
  switch (give(job, setup_.times.take)) {
    case frames::Outcome::closed: return stop();
    case frames::Outcome::timeout: stop(); return End::still;
    case frames::Outcome::done: break;
  }
  std::string bytes;
  const Duration used = child_.processor_time();
  const TimePoint end = Clock::now() + setup_.times.patience * setup_.times.time;
  bool still = false;
  const auto exceeded = [&] {
    used_up = child_.processor_time() - used >= setup_.times.time;
    still = !used_up && stands_still();
    return used_up || still || Clock::now() >= end;
  };
  switch (frames::read(socket_.get(), bytes, exceeded, &given_up_)) {
    case frames::Outcome::closed: return stop();
    case frames::Outcome::timeout: stop(); return still ? End::still : End::slow;
    case frames::Outcome::done: break;
  }
  const auto answer = frames::answer_from_bytes(bytes);
  if (answer && read(*answer)) return End::answered;
  stop();
  return End::broken;
}

/// Has both sides sort the vocabulary, at the same time.
FormProcess::End FormProcess::sort_vocabulary() {
  since_ = Clock::now();
  auto done = give(frames::to_job(frames::SortVocabulary{}), setup_.times.take);
  if (done == frames::Outcome::done) {
    (void)setup_.vocabulary->table();
    std::string bytes;
    since_ = Clock::now();
    const auto late = [this, over = after(setup_.times.start)] { return over() || stands_still(); };
    done = frames::read(socket_.get(), bytes, late, &given_up_);
  }
  if (done == frames::Outcome::closed) return stop();
  if (done == frames::Outcome::timeout) {
    stop();
    return End::still;
  }
  sorted_ = true;
  return End::answered;
}

frames::Outcome FormProcess::give(std::string_view bytes, std::chrono::milliseconds limit) {
  const auto late = [this, over = after(limit)] { return over() || stands_still(); };
  return frames::write(socket_.get(), bytes, late, &given_up_);
}

/// Ends the child. Returns `killed` or `broken` for one that had ended before.
FormProcess::End FormProcess::stop() {
  socket_.reset();
  if (!child_.running()) return End::broken;
  child_.kill(SIGKILL);
  return child_.reap().signal == SIGKILL ? End::killed : End::broken;
}

/// True when the child has used no processor for so long that it stands still. Called several times a second
/// while the child has work. On a busy machine it waits for the processor, or for the disk.
bool FormProcess::stands_still() {
  const Duration used = child_.processor_time();
  const TimePoint now = Clock::now();
  if (used == used_ && now - since_ < setup_.times.standstill) return false;
  if (used == used_ && !has_active_thread(child_.pid())) return true;
  used_ = used;
  since_ = now;
  return false;
}

}  // namespace troupe
