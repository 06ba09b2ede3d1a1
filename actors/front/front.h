#pragma once
// Everything between the HTTP sockets and the link to the engine, started and stopped as one object.
// front_main.cpp passes sockets and the link from the supervisor; a bench or a test can pass its own.
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/media/media_sockets.h"
#include "actors/messages.h"
#include "actors/observation_messages.h"
#include "base/clock.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe {

/// Inherited descriptors. The front owns the sockets from start() on.
struct FrontFds {
  int listen = -1;   ///< bound and listening
  int metrics = -1;  ///< likewise; -1: /metrics is on the first
  struct Engine {
    int step = -1;  ///< segments of the link to it
    int cache = -1;
    int names = -1;  ///< the table of the names of its KV blocks; -1: what it has cached is not known
  };
  /// By index, at least one; the last are those of prefill instances, as many as the options name, and with
  /// any all have names. Those of Options::relayed_engines() come behind all others.
  std::vector<Engine> engines{};
  int vocabulary =
      -1;  ///< a VocabularyImage of the model's tokenizer, for all processes; -1: the front makes its own
  int patches = -1;  ///< an ipc::PatchRegion, which the front alone writes; -1: the model does not see
  std::vector<std::pair<int, int>>
      texts{};           ///< step and cache segments of the links to the text processes, at least one
  MediaSockets media{};  ///< to the media processes of a model that sees
  struct Model {
    config::Options options;  ///< resolved
    int vocabulary = -1;      ///< as above, of this model
  };
  /// Several models: by engine, and the text processes in equal shares. Empty: one, of the front's options.
  std::vector<Model> models{};
};

class Front {
 public:
  /// Reads tokenizer, template and config.json of options.model.directory, starts the actors and the HTTP
  /// threads; likewise of each of several models. Pages are served from then on, generation requests when the
  /// engine has a worker. `options` are resolved: limits and directories are known.
  static Result<std::unique_ptr<Front>> start(const config::Options& options, const FrontFds& fds);

  ~Front();  ///< stops

  /// loading, ready, draining or restarting. Lock-free.
  std::string state() const;

  /// Asks every part for a sign of life, tells the health routes who stands still, and beats on the link
  /// unless a part of the front does. Call it at least eight times a second, from one thread.
  void beat();

  /// The part of the front that stands still, as of the last beat(). Empty: none does.
  std::string silent() const;

  /// A text process that sends what it should not, and why: it has to be replaced. Each is named once.
  struct Distrusted {
    std::uint32_t index = 0;
    std::string why;
  };
  std::optional<Distrusted> take_distrusted();

  /// The state of every part, once it is known, the engine's among it while there is one; nothing when
  /// GATEWAY does not answer within the time given.
  /// Of several models each is asked.
  std::vector<std::future<std::optional<EngineStatus>>> ask_status(Duration patience);

  /// Takes what --api-key-file, --admin-api-key-file and the PEM files hold now from `http`; its other
  /// members are not read. Not ok: nothing has changed.
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
  explicit Front(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
