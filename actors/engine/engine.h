#pragma once
// Everything between the links to the fronts and those to the workers, started and stopped as one object.
// engine_main.cpp passes the links from the supervisor; a bench or a test can pass its own.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/options.h"

namespace troupe {

/// Inherited descriptors.
struct EngineFds {
  std::vector<int> step;                    ///< the workers' step segments, by rank
  std::vector<int> cache;                   ///< the workers' cache segments, by rank
  std::vector<std::pair<int, int>> fronts;  ///< the fronts' segments, step and cache
  int names = -1;  ///< the table of the names of KV blocks; -1: this engine's names end with it
  std::vector<int>
      peer_names{};     ///< likewise of other instances, by index, whose KV memory the workers are given
  int vocabulary = -1;  ///< a VocabularyImage of the model's tokenizer; -1: the engine loads the tokenizer
  int index = 0;        ///< of the engine, among those of the server
};

class Engine {
 public:
  /// Reads config.json and, for forms, generation_config.json of options.model.directory, and starts the
  /// actors. Requests are taken when the worker has attached. `options` are resolved: limits and directories
  /// are known.
  static Result<std::unique_ptr<Engine>> start(const config::Options& options, const EngineFds& fds);

  ~Engine();  ///< stops

  /// A worker is attached. Lock-free.
  bool ready() const;

  /// Asks every part for a sign of life, tells the fronts who stands still, and beats on the links unless a
  /// part of the engine does. Call it at least eight times a second, from one thread.
  void beat();

  /// The part that stands still, as of the last beat(): of the engine, or a worker. Empty: none does.
  std::string silent() const;

  /// False when an actor that cannot be replaced has died: the process should end with why().
  bool alive() const;
  std::string why() const;

  /// Ends the actors in reverse start order. Idempotent; only the destructor may follow.
  void stop();

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
