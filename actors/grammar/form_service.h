#pragma once
// From a form as a client wrote it to a compiled one, without blocking who asks. One thread checks forms and
// looks them up, so that known forms do not wait behind one that is slow to compile. The others talk to a
// CompileProcess each; the second, and its process, do nothing before a form comes while the first compiles
// another, so that one slow form holds up no others.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/grammar/compile_process.h"
#include "actors/grammar/form_cache.h"
#include "base/log.h"
#include "text/grammar/form.h"

namespace troupe {

struct FormServiceSetup {
  std::shared_ptr<const Tokenizer> tokenizer;
  grammar::Vocabulary vocabulary;
  bool any_whitespace = true;
  std::string executable = "/proc/self/exe";
  CompileLimits limits;
  grammar::FormLimits form_limits;
  std::size_t cache_bytes = std::size_t{512} << 20;
  std::size_t cache_entries = 1000;
  Log log{};
  std::size_t most_waiting = 128;  ///< forms that wait for a compiler; further ones are refused
};

class FormService {
 public:
  /// `notify` is called from the service's threads when the outcome of a ticket can be taken; it must not
  /// block.
  FormService(FormServiceSetup setup, std::function<void(std::uint64_t ticket)> notify);
  /// Ends within a fraction of a second; outcomes that are not there yet never come.
  ~FormService();
  FormService(const FormService&) = delete;
  FormService& operator=(const FormService&) = delete;

  /// `ticket` must not be in use.
  void submit(std::uint64_t ticket, grammar::Form form);

  /// The outcome of a ticket that notify() named, once. A refusal names the place in the client's own field;
  /// overloaded when too many other forms wait for a compiler.
  CompileOutcome take(std::uint64_t ticket);

 private:
  struct Job {
    std::uint64_t ticket = 0;
    grammar::Form form;
  };
  /// A request that waits for a form: where it has the form, and parts of the form that it has elsewhere.
  struct Waiter {
    std::uint64_t ticket = 0;
    std::string param;
    std::vector<std::pair<std::string, std::string>> places;
  };

  void check(const std::stop_token& stop);
  void compile(const std::stop_token& stop, std::size_t compiler);
  bool has_work(std::size_t compiler) const;
  void look_up(Job job);
  Status too_many_waiting(const std::string& param) const;
  static Status name_part(Status refusal, const Waiter& waiter);
  static Status name_place(Status refusal, const Waiter& waiter);
  void finish(std::uint64_t ticket, CompileOutcome outcome);

  const FormServiceSetup setup_;
  const std::function<void(std::uint64_t)> notify_;
  static constexpr std::size_t kCompilers = 2;
  std::array<std::unique_ptr<CompileProcess>, kCompilers> processes_;  // used by the compilers_

  std::mutex mutex_;
  std::condition_variable_any check_more_, compile_more_;
  std::deque<Job> jobs_;                                              // guarded by mutex_, as all below
  std::deque<grammar::Source> sources_;                               // to compile
  std::size_t compiling_ = 0;                                         // compilers that have a source
  std::unordered_map<std::string, std::vector<Waiter>> in_progress_;  // by FormCache::key
  std::map<std::uint64_t, CompileOutcome> outcomes_;
  FormCache cache_;

  std::jthread checker_;
  std::array<std::jthread, kCompilers> compilers_;
};

}  // namespace troupe
