#pragma once
// Everything between the HTTP sockets and the rings, started and stopped as one object. engine_main.cpp passes
// sockets and rings from the supervisor; a bench or a test can pass its own.
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/observation_messages.h"
#include "base/clock.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe {

/// Inherited descriptors. The engine owns the sockets from start() on.
struct EngineFds {
  int listen = -1;   ///< bound and listening
  int metrics = -1;  ///< likewise; -1: /metrics is on the first
  std::vector<int> step;   ///< the links' step segments, by rank
  std::vector<int> cache;  ///< the links' cache segments, by rank
};

class Engine {
 public:
  /// Reads tokenizer, template and config.json of options.model.directory, starts the actors and the HTTP
  /// threads. Pages are served from then on, generation requests when the worker has attached. `options` are
  /// resolved: limits and directories are known.
  static Result<std::unique_ptr<Engine>> start(const config::Options& options, const EngineFds& fds);

  ~Engine();  ///< stops

  /// loading, ready, draining or restarting. Lock-free.
  std::string state() const;

  /// Asks every part for a sign of life, tells the health routes who stands still, and beats on the link unless a
  /// part of the engine does. Call it at least eight times a second, from one thread.
  void beat();

  /// The part that stands still, as of the last beat(): of the engine, or a worker. Empty: none does.
  std::string silent() const;

  /// The state of every part, once it is known; nothing when an actor does not answer within the time given.
  std::future<std::optional<EngineStatus>> ask_status(Duration patience);

  /// Takes what --api-key-file, --admin-api-key-file and the PEM files hold now from `http`; its other members are not
  /// read. Not ok: nothing has changed.
  Status renew_credentials(const config::HttpOptions& http);

  /// Tells METRICS which processes the supervisor has.
  void report(ProcessReports processes);

  /// Refuses new requests from now on; open ones go on. Returns at once.
  void drain();

  /// Ends the requests that are still open after drain(), each with an error that its client is told. Returns
  /// at once.
  void abandon();

  /// True when no request is open any more after drain().
  bool idle() const;

  /// Generation requests that ended without an error since the start. Lock-free.
  std::uint64_t served() const;

  /// Tokens generated since the start, of open requests too. Lock-free.
  std::uint64_t generated_tokens() const;

  /// False when an actor that cannot be replaced has died: the process should end with why().
  bool alive() const;
  std::string why() const;

  /// Ends HTTP, then the actors in reverse start order. Idempotent; only the destructor may follow.
  void stop();

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
