#pragma once
// From a form as a client wrote it to a compiled one, without blocking who asks. No form is read here, only
// hashed, queued and handed to processes that may die of it:
//
//   submit ─▶ looked up ─▶ checked ─▶ compiled
//
// One thread looks forms up by their text: those that are known, refusals too, end there. The others talk to
// a FormProcess each, which checks new forms and compiles them. The second works while the first is busy, the
// third while both are, so that one slow form holds up no others; two compile at most, so that one is left to
// check. A process is started with its first form. Among the new forms those of the client come first that
// has the fewest at work.
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

#include "actors/grammar/checked_forms.h"
#include "actors/grammar/form_cache.h"
#include "actors/grammar/form_process.h"
#include "base/work_pulse.h"
#include "text/grammar/form.h"

namespace troupe {

struct FormServiceSetup {
  FormProcessSetup process;
  std::size_t cache_bytes = std::size_t{512} << 20;
  std::size_t cache_entries = 1000;
  std::size_t most_waiting =
      128;  ///< new forms that wait to be checked or compiled; further ones are refused
  std::size_t most_of_client = 64;  ///< new forms of one client that wait or are at work; likewise
  /// Sign of life of the thread that looks forms up; no deadline bounds it.
  std::shared_ptr<WorkPulse> pulse = std::make_shared<WorkPulse>();
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

  /// `ticket` must not be in use. `client`: who asks, as limits count them.
  void submit(std::uint64_t ticket, grammar::Form form, std::string client = {});

  /// The outcome of a ticket that notify() named, once. A refusal names the place in the client's own field;
  /// overloaded when too many other forms wait, in all or of this client.
  CompileOutcome take(std::uint64_t ticket);

  /// The ticket's client has left; notify() may still name the ticket. A queued form that no other ticket
  /// wants is dropped. One that is being checked or compiled is finished and cached: ending it would end its
  /// process, whose restart takes longer than most forms. Until then it counts for its client.
  void drop(std::uint64_t ticket);

 private:
  struct Job {
    std::uint64_t ticket = 0;
    grammar::Form form;
    std::string client;
  };
  /// A request that waits for a form: where it has the form, and parts of the form that it has elsewhere.
  struct Waiter {
    std::uint64_t ticket = 0;
    std::string param;
    std::vector<std::pair<std::string, std::string>> places;
  };
  /// A new form.
  struct Work {
    BlockHash name;
    std::string client;
    grammar::Form form;      ///< until it is checked
    grammar::Source source;  ///< from then on
    std::string key;         ///< of the source; empty before
    std::vector<Waiter> waiters{};
  };
  using WorkPtr = std::shared_ptr<Work>;
  struct Client {
    std::size_t open = 0;     ///< new forms that wait or are at work
    std::size_t at_work = 0;  ///< of them, those that are checked or compiled
  };

  void run_lookups(const std::stop_token& stop);
  void run_process(const std::stop_token& stop, std::size_t process);
  bool may_compile() const { return !to_compile_.empty() && compiling_ < kCompilers; }
  void look_up(Job job);
  Status no_room(const std::string& client, const std::string& param) const;
  void check(FormProcess& process, const WorkPtr& work);
  void compile(FormProcess& process, const WorkPtr& work);
  void to_compile(std::unique_lock<std::mutex>& lock, const WorkPtr& work);
  WorkPtr take_next(std::deque<WorkPtr>& queue);
  std::vector<Waiter> close(const WorkPtr& work);
  static Status name_part(Status refusal, const Waiter& waiter);
  static Status name_place(Status refusal, const Waiter& waiter);
  void finish(std::uint64_t ticket, CompileOutcome outcome);
  void refuse(const std::vector<Waiter>& waiters, const Status& refusal);
  void finish_known(const std::vector<Waiter>& waiters, const CompileOutcome& outcome);

  const FormServiceSetup setup_;
  const std::function<void(std::uint64_t)> notify_;
  const HashKey hash_key_;
  static constexpr std::size_t kProcesses = 3, kCompilers = 2;
  std::array<std::unique_ptr<FormProcess>, kProcesses> processes_;  // each used by its thread

  std::mutex mutex_;
  std::condition_variable_any look_more_, work_more_;
  std::deque<Job> jobs_;         // guarded by mutex_, as all below
  std::uint64_t looked_up_ = 0;  // ticket of the job that is being looked up
  std::deque<WorkPtr> to_check_, to_compile_;
  std::size_t busy_ = 0, compiling_ = 0;             // processes that have a form, and that compile it
  std::map<BlockHash, WorkPtr> by_name_;             // new forms
  std::unordered_map<std::string, WorkPtr> by_key_;  // those of them that are checked, by FormCache::key
  std::unordered_map<std::string, Client> clients_;  // with new forms
  std::map<std::uint64_t, CompileOutcome> outcomes_;
  CheckedForms checked_;
  FormCache cache_;

  std::jthread lookups_;
  std::array<std::jthread, kProcesses> threads_;
};

}  // namespace troupe
