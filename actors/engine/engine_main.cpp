#include "actors/engine/engine_main.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "actors/engine/child_main.h"
#include "actors/engine/engine.h"
#include "base/exhaustion.h"

namespace troupe {
namespace {

using supervisor::Control;

constexpr auto kTick = std::chrono::milliseconds(20);

/// The engine process's main loop: obeys the supervisor and reports to it. Returns when the supervisor has
/// gone or asks it to end, or an actor that cannot be replaced has died.
Status run(Engine& engine, Control& control) {
  std::string told_state;
  SilenceReport silence(control);
  bool was_ready = false;
  while (engine.alive()) {
    engine.beat();
    silence.tell(engine.silent());
    was_ready |= engine.ready();
    if (std::string state = engine.ready() ? "ready"
                            : was_ready    ? "restarting"
                                           : "loading";
        state != told_state) {
      control.tell({{"event", "state"}, {"state", state}});
      told_state = std::move(state);
    }
    if (asked_to_end(control.receive(Clock::now() + kTick))) return {};
  }
  return failure(Code::internal, engine.why() + address_space_remark());
}

}  // namespace

int engine_main(const std::vector<std::string>& words) {
  return run_child(
      "engine", words, [](const auto& arguments, Control& control, const config::Options& options) {
        EngineFds fds{arguments.step_fds,      arguments.cache_fds, {}, -1, arguments.peer_names_fds,
                      arguments.vocabulary_fd, arguments.engine};
        if (!arguments.names_fds.empty()) fds.names = arguments.names_fds.front();
        for (std::size_t i = 0; i < arguments.link_step_fds.size(); ++i) {
          fds.fronts.emplace_back(arguments.link_step_fds[i], arguments.link_cache_fds[i]);
        }
        auto engine = Engine::start(options, fds);
        if (!engine.ok()) return engine.status();
        Status status = run(**engine, control);
        (*engine)->stop();
        return status;
      });
}

}  // namespace troupe
