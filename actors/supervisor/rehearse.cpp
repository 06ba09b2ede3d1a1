#include <utility>

#include "actors/supervisor/descriptor_limit.h"
#include "actors/supervisor/resources.h"
#include "actors/supervisor/supervisor.h"
#include "base/log_file.h"

namespace troupe::supervisor {
Result<std::string> rehearse(const SupervisorSetup& setup) {
  config::Options options = setup.options;
  if (Status s = try_log_file("supervisor", options.log); !s.ok()) return s;
  for (const auto& [actor, directory] : options.log.actor_dirs) {
    if (Status s = try_log_file(actor, options.log); !s.ok()) return s;
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
