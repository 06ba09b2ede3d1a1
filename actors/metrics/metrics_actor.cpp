#include "actors/metrics/metrics_actor.h"

namespace troupe {

metrics_actor::behavior_type metrics_behavior(metrics_actor::stateful_pointer<MetricsState> self,
                                              metrics::Constants constants, Log log) {
  answer_probes(self);
  auto& state = self->state;
  log.info("started", {kv("model", constants.model)});
  state.registry = metrics::Registry(std::move(constants));
  return {
      answer_beat,
      [&state](const StepStats& step) { state.registry.add(step); },
      [&state](const RequestStats& request) { state.registry.add(request); },
      [&state](const HttpStats& answer) { state.registry.add(answer); },
      [&state](const DoorStats& door) { state.registry.add(door); },
      [&state](const MediaStats& media) { state.registry.set(media); },
      [&state](ProcessReports& reports) { state.registry.set(std::move(reports)); },
      [&state, log](caf::get_atom) {
        std::string text = state.registry.text();
        log.debug("scraped", {kv("bytes", text.size())});
        return text;
      },
  };
}

}  // namespace troupe
