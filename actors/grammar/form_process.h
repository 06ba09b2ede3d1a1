#pragma once
// The engine's side of a process for forms. Checking and compiling what clients wrote cannot be interrupted,
// and may take any time and memory, hang or crash. Then the process is replaced, and the next one is asked
// once more; at its second end the form is refused, and no other form is concerned.
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
#include "actors/grammar/frames.h"
#include "actors/supervisor/child_process.h"
#include "base/clock.h"
#include "base/log.h"
#include "ipc/fd.h"
#include "text/grammar/compiler.h"
#include "text/grammar/form.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {

/// Of one form, without the start of the process.
struct FormTimes {
  std::chrono::milliseconds time{10'000};  ///< of the processor, to check a form, and to compile it
  int patience =
      3;  ///< times as long by the clock: on a busy machine the process gets little of the processor
  /// Of the process's start, and of sorting the vocabulary, on a busy machine.
  std::chrono::milliseconds start{20'000};
  std::chrono::milliseconds take{
      5'000};  ///< until an idle process has taken a form; one that has not is replaced
  /// A process that has used no processor in this time, and none of whose threads waits for one, stands
  /// still.
  std::chrono::milliseconds standstill{2'000};
};

/// A model's vocabulary for forms. Nothing is made of it before a form is compiled: most servers never see
/// one, and the table of a large vocabulary takes tens of megabytes. Thread-safe.
class FormVocabulary {
 public:
  /// `size`: of the model; `stop_ids` end an answer that is complete.
  FormVocabulary(std::shared_ptr<const VocabularyImage> texts, int size, std::vector<TokenId> stop_ids)
      : texts_(std::move(texts)), size_(size), stop_ids_(std::move(stop_ids)) {}

  const VocabularyImage& texts() const { return *texts_; }
  int size() const { return size_; }
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }

  /// Made by the first call, for which others wait.
  grammar::TokenTable table() const;
  bool has_table() const;

 private:
  const std::shared_ptr<const VocabularyImage> texts_;
  const int size_;
  const std::vector<TokenId> stop_ids_;
  mutable std::mutex mutex_;
  mutable std::optional<grammar::TokenTable> table_;  // guarded by mutex_
};

struct FormProcessSetup {
  std::string executable = "/proc/self/exe";
  std::shared_ptr<const FormVocabulary> vocabulary;
  bool any_whitespace = true;  ///< between the parts of JSON
  grammar::FormLimits form_limits;
  FormTimes times;
  Log log{};
};

/// Used by one thread, and ends with it. The process is started with the first form.
class FormProcess {
 public:
  explicit FormProcess(FormProcessSetup setup) : setup_(std::move(setup)) {}

  // Both block for at most twice the times of a form and of the start of a process. `lasting`: the same form
  // would have the same outcome again, as far as is known. Of a refusal, invalid_argument is the form's
  // fault; unavailable may be anyone's: the same form may be tried again later.

  /// What is to be compiled. A refusal names its place within the request.
  Result<grammar::Source> check(const grammar::Form& form, bool& lasting);

  /// `status.param` and the message of a refusal begin within the form.
  CompileOutcome compile(const grammar::Source& source, bool& lasting);

  /// Ends a call that another thread waits in, and every later one, within a tenth of a second.
  void give_up() { given_up_ = true; }

  /// Of the process; 0: none runs.
  pid_t pid() const { return child_.pid(); }

 private:
  enum class Work : std::uint8_t { check, compile };
  /// Reads an answer; false: it is damaged.
  using Reader = std::function<bool(const frames::Answer&)>;
  /// How an attempt ended.
  enum class End : std::uint8_t {
    answered,
    slow,    ///< the form's time was over
    killed,  ///< by SIGKILL: from outside
    broken,  ///< by itself, or with a damaged answer
    still,   ///< it stood still, or never took the job
  };

  Status ask(Work work, const std::string& job, const Reader& read, bool& lasting);
  Status refusal(Work work, End last) const;
  Status start();
  End attempt(Work work, const std::string& job, const Reader& read, bool& used_up);
  End sort_vocabulary();
  frames::Outcome give(std::string_view bytes, std::chrono::milliseconds limit);
  End stop();
  bool stands_still();

  const FormProcessSetup setup_;
  supervisor::ChildProcess child_;
  ipc::Fd socket_;
  bool sorted_ = false;  // the child has its vocabulary sorted
  Duration used_{};      // of the processor, when stands_still() looked last
  TimePoint since_{};    // when it had used as much for the first time
  std::atomic<bool> given_up_{false};
};

}  // namespace troupe
