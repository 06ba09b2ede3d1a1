#pragma once
// The supervisor process: no model, no actor, one thread, one poll() loop. It prepares everything that must
// outlive a child (sockets, rings, locks), starts the children, watches them through pidfds, restarts those
// that die, drains on a signal, and leaves no file or process behind.
//
//   starting  preflight → ports and locks → sockets → rings → children
//   running   when a child dies: raise the link's epoch, wait the delay, start its successor; after too many
//             deaths, or a "fatal" message from a child that was never ready: stop, exit 1
//   draining  SIGTERM or SIGINT: the front refuses new requests and finishes the open ones; no restarts but
//   the engine's and
//             workers'
//   stopping  the front, the engine, the workers, the text processes, then the media processes: asked to end,
//   killed after the grace. A second signal kills all at once
//
// Signals are taken through a signalfd. SIGHUP drains a server that was started from a terminal, whose end it
// tells, and has others read certificate and keys again; where it was ignored at the start (nohup) it stays
// so. The children ignore SIGHUP, and SIGPIPE like the supervisor.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/console.h"
#include "actors/supervisor/log_event.h"
#include "actors/supervisor/rank_links.h"
#include "actors/supervisor/resources.h"
#include "actors/supervisor/restart_policy.h"
#include "base/clock.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct SupervisorSetup {
  config::Options options;  ///< parsed and validated

  /// Checks that the start can succeed, fills in the options that were left open, and returns the lines of
  /// the start summary. Runs before any port is taken.
  std::function<Result<std::string>(config::Options&)> preflight;

  /// Reads the files that options.http names for keys and certificates, and checks them. The old contents
  /// stay when it fails. Called for SIGHUP; empty: nothing is read again.
  std::function<Status(config::HttpOptions&)> read_credentials;

  std::string executable = "/proc/self/exe";
  std::string installed;  ///< the file that a restart on request runs, which may have been replaced; empty:
                          ///< `executable`
  std::vector<std::string>
      words_before;  ///< arguments of the executable before front, engine, worker, text and media
  ProcessCounts counts;

  /// With which KV blocks are named, so that other machines know the names. Called once, after preflight;
  /// empty, or nothing: this server has a key of its own.
  std::function<std::optional<ipc::NamesKey>()> names_key;

  /// Makes the memory in which the ranks of an engine meet. Called for each engine where there are several
  /// ranks; empty: they need none.
  std::function<Result<RanksMemory>(int ranks)> make_ranks_memory;

  /// The memory file with what the model's tokens print, which front, engine and text processes map. Called
  /// once, after preflight, which has read it; empty: each reads the tokenizer's files.
  std::function<ipc::Fd()> take_vocabulary;

  /// Of several models, by engine. Likewise; empty, or nothing: all engines have the one of `options`.
  std::function<std::vector<ServedModel>()> take_models;

  /// An ipc::PatchRegion for a model that sees. Likewise; invalid: there is none.
  std::function<ipc::Fd()> take_patches;

  Duration grace = std::chrono::seconds(3);  ///< between asking a child to end and killing it
  Duration status_patience = std::chrono::seconds(1);
  RestartLimits restarts;  ///< its first two fields are overwritten by options.process

  ConsoleStyle console;
  std::string notify_socket;  ///< of a service manager, as NOTIFY_SOCKET names it; empty: there is none

  LogEvent log = [](LogLevel, std::string_view, std::initializer_list<LogField>) {};

  /// For what media processes write to their standard output and error. Empty: that goes to this process's.
  OpenLog open_log;
};

/// Does what supervise() does before it starts a child, and gives back what it took: nothing listens, no log
/// is written. Returns the start summary.
Result<std::string> rehearse(const SupervisorSetup& setup);

/// Runs a whole server and returns the process's exit code: 0 after a signal, config::exit_code() of the
/// error when the start fails, 1 when a child could not be kept alive. Prints the reason on stderr unless it
/// is 0.
int supervise(SupervisorSetup setup);

}  // namespace troupe::supervisor
