#pragma once
// What a child process is handed: descriptors that it inherits, named by number on its command line
//   troupe front  --options-fd=3 --control-fd=4 --listen-fd=5 --link-step-fd=11 --link-cache-fd=12
//                 --text-step-fd=15 --text-cache-fd=16 --vocabulary-fd=14 --patches-fd=17
//                 --media-fd=19,20 --video-fd=21
//   troupe engine --options-fd=3 --control-fd=4 --step-fd=6,8 --cache-fd=7,9 --link-step-fd=11
//   --link-cache-fd=12 --names-fd=13
//                 --vocabulary-fd=14
//   troupe text   --options-fd=3 --control-fd=4 --link-step-fd=15 --link-cache-fd=16 --vocabulary-fd=14
//                 --rank=0
//   troupe worker --options-fd=3 --control-fd=4 --step-fd=8 --cache-fd=9 --ranks-fd=10 --rank=1
//                 --patches-fd=17
//   troupe media  --fd=18 --control-fd=4
// and the resolved options as JSON in a sealed memory file, so that no secret is seen in a process list.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

/// Index of the front of a decode instance among the fronts of the engine that computes prompts for it.
inline constexpr std::uint32_t kDecodeFront = 1;

struct ChildArguments {
  int options_fd = -1;
  int control_fd = -1;
  int listen_fd = -1;          ///< front
  int metrics_fd = -1;         ///< front, with a metrics port of its own
  int ranks_fd = -1;           ///< worker, where several ranks run: the memory in which they meet
  int vocabulary_fd = -1;      ///< front, engine, text: what the model's tokens print
  int patches_fd = -1;         ///< front, relay, worker of a model that sees: an ipc::PatchRegion
  int engine = 0;              ///< index of the engine, or of the one that the worker serves
  std::vector<int> names_fds;  ///< names of KV blocks: an engine's own; the front's, by engine; a relay's
  std::vector<int> peer_names_fds;  ///< engine of a decode instance: those of the prefill instances
  /// Memory through which KV blocks come from prefill engines on other machines (ipc/block_fetches.h): a
  /// worker's by engine, a relay's by rank.
  std::vector<int> fetch_fds;
  /// Likewise memory through which a prefill engine's worker gives its KV blocks to the relay where that
  /// cannot map them: a worker's own alone, the relay's by rank.
  std::vector<int> give_fds;
  std::vector<int> step_fds;   ///< of the workers' links: the engine's by rank, a worker's own alone
  std::vector<int> cache_fds;  ///< likewise
  int rank = 0;                ///< of a worker; of a text or media process, its index
  /// Of this process's links: a front's to engines, then to those of prefill instances; an engine's to its
  /// front, then to that of a decode instance; a text process's to the front.
  std::vector<int> link_step_fds;
  std::vector<int> link_cache_fds;  ///< likewise
  std::vector<int> text_step_fds;   ///< front: of the links to text processes, by index
  std::vector<int> text_cache_fds;  ///< likewise

  /// Front of several models, by engine: the files of their options, and what their tokens print.
  std::vector<int> model_fds;
  std::vector<int> model_vocabulary_fds;  ///< likewise

  int socket_fd = -1;          ///< media process: its end of the socket to the front
  std::vector<int> media_fds;  ///< front: its ends of the sockets to those for pictures
  std::vector<int> video_fds;  ///< front: to those for videos

  /// Every descriptor that is there.
  std::vector<int> descriptors() const;
};

std::vector<std::string> to_words(const ChildArguments& arguments);

/// For the child's main: reads the words after "front", "engine", "text" or "worker" and marks the
/// descriptors close-on-exec. invalid_argument when one that every child needs is missing or not open.
Result<ChildArguments> parse_child_arguments(const std::vector<std::string>& words);

/// A sealed memory file that holds the options; each child reads it from its start.
Result<ipc::Fd> make_options_file(const config::Options& options);
Result<config::Options> read_options_file(int fd);

}  // namespace troupe::supervisor
