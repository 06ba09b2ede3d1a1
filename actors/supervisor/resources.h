#pragma once
// Everything that outlives a child: ports, sockets, rings, the file of options. Taken once at the
// start, released when the supervisor ends; children inherit the descriptors.
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/child.h"
#include "actors/supervisor/ports.h"
#include "actors/supervisor/rank_links.h"
#include "actors/supervisor/status_page.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/block_names.h"
#include "ipc/link.h"

namespace troupe::supervisor {

/// Fronts on other machines that an engine takes at a time, each with a link.
inline constexpr int kMostFronts = 4;

/// What one engine and its workers inherit.
struct EngineResources {
  std::vector<ipc::LinkFds> links;        ///< by rank
  ipc::LinkFds front_link;                ///< between the front and the engine
  std::vector<ipc::LinkFds> more_fronts;  ///< likewise, of an engine whose front is a relay for several
  ipc::Fd block_names;                    ///< ipc::BlockNames of the engine, which the front reads
  ipc::Fd ranks_memory;                   ///< in which several ranks meet; invalid where one runs
  std::vector<ipc::Fd> gives;  ///< ipc::BlockFetches by rank; of a prefill engine that takes fronts
};

/// One of several models: what its engine, worker and text processes are started with. Not yet a file.
struct ServedModel {
  config::Options options;  ///< resolved
  ipc::Fd vocabulary;       ///< what its tokens print
};

/// Likewise, as they inherit it.
struct ModelResources {
  std::string name;
  ipc::Fd options_file;  ///< without keys
  ipc::Fd vocabulary;
};

/// What a decode instance shares with one prefill instance. It is made at the start and outlives every
/// instance that has the port.
struct PeerResources {
  int port = 0;         ///< the engine-worker-queue port of the prefill instance
  ipc::LinkFds link;    ///< between the front here and the engine there
  ipc::Fd block_names;  ///< ipc::BlockNames that the engine there writes, with the key of those here
};

/// What stands for an engine on another machine.
struct RemoteResources {
  ipc::LinkFds link;             ///< between the front and the relay
  ipc::Fd block_names;           ///< ipc::BlockNames of the engine, as far as they are known here
  std::vector<ipc::Fd> fetches;  ///< ipc::BlockFetches by rank; of a prefill engine

  bool gives_blocks() const { return !fetches.empty(); }
};

struct Resources {
  config::Options options;  ///< with the ports that were chosen
  Ports ports;
  ipc::Fd options_file;                  ///< the front's
  ipc::Fd worker_options_file;           ///< the same without keys
  std::vector<EngineResources> engines;  ///< by index
  std::vector<ModelResources> models;    ///< by engine, of several models; empty: one
  std::vector<PeerResources> peers;      ///< by prefill port
  std::vector<RemoteResources> remotes;  ///< by index of Options::relayed_engines()
  std::vector<ipc::LinkFds> text_links;  ///< between the front and the text processes, by index
  int pictures = 0;      ///< so many of the media processes are for pictures, the others for videos
  ipc::Fd vocabulary;    ///< what the model's tokens print, for all that need it; invalid: each has its own
  ipc::Fd patches;       ///< ipc::PatchRegion, which the front writes and workers read; invalid: none
  ServerLinks monitors;  ///< of the links

  /// `memories`: by engine, in which its ranks meet; empty: they need none. `names`: the key with which KV
  /// blocks are named; empty: a new one.
  static Result<Resources> take(config::Options options, const ProcessCounts& counts,
                                std::vector<RanksMemory> memories = {}, Opening opening = Opening::listen,
                                const std::optional<ipc::NamesKey>& names = {});

  /// Gives each engine a model of its own: as many as there are engines, or none.
  Status add_models(std::vector<ServedModel> served);

  /// Makes the sockets between the front and the media processes.
  Status add_media(const ProcessCounts& counts);

  /// The front or the relay in its place, the engines, the workers by engine and rank, the text processes,
  /// the media processes, then the relays; not started. `words_before` stand in front of "front", "engine"
  /// and so on.
  std::vector<Child> make_children(const std::vector<std::string>& words_before) const;

  /// Takes over what renewed options of HTTP hold, and the file of options that has them; a front that starts
  /// from now on sees them, once its arguments name that file.
  void renew(const config::HttpOptions& http, ipc::Fd file);

  /// The lines of the start summary that name ports and logs.
  std::string summary() const;

  /// Where clients or fronts come to.
  std::string place() const;

  /// The page with model, ports and rings filled in; the caller fills in the rest.
  StatusPage page() const;
};

/// "http://HOST:PORT", or https where there is a certificate; an IPv6 address gets its brackets.
std::string url_of(const config::HttpOptions& http, const std::string& host);

/// The first served model name; without one, the last part of the directory.
std::string name_of(const config::ModelOptions& model);

}  // namespace troupe::supervisor
