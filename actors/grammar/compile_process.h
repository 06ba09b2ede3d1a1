#pragma once
// The process that compiles forms. Compiling cannot be interrupted and may take any time and memory, or
// crash: the process is killed then, and the next form finds a new one.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/grammar/form_cache.h"
#include "actors/supervisor/child_process.h"
#include "base/clock.h"
#include "ipc/fd.h"
#include "text/grammar/compiler.h"

namespace troupe {

/// Of one form, without the start of the process.
struct CompileLimits {
  std::chrono::milliseconds time{10'000};  ///< of the processor
  int patience =
      3;  ///< times as long by the clock: on a busy machine the process gets little of the processor
  /// Of the process's start, in which it reads and sorts the vocabulary, on a busy machine.
  std::chrono::milliseconds start{20'000};
  std::chrono::milliseconds take{
      5'000};  ///< until an idle process has taken a form; one that has not is replaced
  /// A process that has used no processor in this time, and none of whose threads waits for one, stands
  /// still: it is replaced, and the form given to the next one, once.
  std::chrono::milliseconds standstill{2'000};
};

/// A model's vocabulary for forms. Nothing of it is made before a form needs it: most servers never see one,
/// and the table of a large vocabulary takes tens of megabytes. Thread-safe.
class FormVocabulary {
 public:
  /// `make` returns the same vocabulary in each call; any thread may call it.
  explicit FormVocabulary(std::function<grammar::Vocabulary()> make) : make_(std::move(make)) {}

  std::string bytes() const { return grammar::to_bytes(make_()); }

  /// Made by the first call, for which others wait.
  grammar::TokenTable table() const;

 private:
  const std::function<grammar::Vocabulary()> make_;
  mutable std::mutex mutex_;
  mutable std::optional<grammar::TokenTable> table_;  // guarded by mutex_
};

/// Used by one thread, and ends with it.
class CompileProcess {
 public:
  CompileProcess(std::string executable, std::shared_ptr<const FormVocabulary> vocabulary,
                 CompileLimits limits)
      : executable_(std::move(executable)), vocabulary_(std::move(vocabulary)), limits_(limits) {}

  /// Blocks for at most the limits of a form and of the start of a process. A refusal with the code
  /// invalid_argument is the form's fault. `lasting`: the same form would have the same outcome again, as far
  /// as is known.
  CompileOutcome compile(const grammar::Source& source, bool& lasting);

  /// Ends a compile() that another thread waits in, and every later one, within a tenth of a second.
  void give_up() { given_up_ = true; }

  int starts() const { return starts_; }  ///< of processes so far

 private:
  Status start();
  void stop();
  bool give(std::string_view bytes, std::chrono::milliseconds limit);
  bool stands_still();
  std::optional<CompileOutcome> attempt(const std::string& job, bool& lasting);
  Duration processor_time() const;

  const std::string executable_;
  const std::shared_ptr<const FormVocabulary> vocabulary_;
  const CompileLimits limits_;
  supervisor::ChildProcess child_;
  ipc::Fd socket_;
  int starts_ = 0;
  Duration used_{};    // of the processor, when stands_still() looked last
  TimePoint since_{};  // when it had used as much for the first time
  std::atomic<bool> given_up_{false};
};

/// `troupe grammar --fd=N`: the process itself. Returns its exit code.
int compile_main(const std::vector<std::string>& words);

}  // namespace troupe
