#include <unistd.h>

#include <filesystem>
#include <utility>

#include "actors/supervisor/descriptor_limit.h"
#include "actors/supervisor/resources.h"
#include "actors/supervisor/supervisor.h"

namespace troupe::supervisor {
namespace {

/// Whether `directory` could be made and written to, as far as the nearest directory above it that exists
/// tells.
Status check_writable(const std::string& directory, const std::string& flag) {
  std::error_code error;
  std::filesystem::path nearest = std::filesystem::absolute(directory, error);
  while (!std::filesystem::exists(std::filesystem::symlink_status(nearest, error)) &&
         nearest.has_relative_path()) {
    nearest = nearest.parent_path();
  }
  const std::string said = flag + " " + directory + ": ";
  if (!std::filesystem::is_directory(nearest, error))
    return invalid(said + nearest.string() + " is not a directory");
  if (::access(nearest.c_str(), W_OK | X_OK) != 0)
    return invalid(said + nearest.string() + " is not writable");
  return {};
}

}  // namespace

Result<std::string> rehearse(const SupervisorSetup& setup) {
  config::Options options = setup.options;
  if (Status s = check_writable(options.log.dir, "--log-dir"); !s.ok()) return s;
  for (const auto& [actor, directory] : options.log.actor_dirs) {
    if (Status s = check_writable(directory, "--actor-log-dir " + actor); !s.ok()) return s;
  }
  auto summary = setup.preflight(options);
  if (!summary.ok()) return summary;
  const auto narrowed = raise_descriptor_limit(options);
  if (!narrowed.ok()) return narrowed.status();
  const auto resources = Resources::take(std::move(options), setup.counts, {}, Opening::bind_only);
  if (!resources.ok()) return resources.status();
  if (!summary->empty() && summary->back() != '\n') *summary += '\n';
  return *summary + resources->summary() + (narrowed->empty() ? "" : "note      " + *narrowed + "\n");
}

}  // namespace troupe::supervisor
