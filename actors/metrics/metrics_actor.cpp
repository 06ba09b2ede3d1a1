#include "actors/metrics/metrics_actor.h"

namespace troupe {

metrics_actor::behavior_type metrics_behavior(metrics_actor::stateful_pointer<MetricsState> self,
                                              metrics::Constants constants) {
  auto& state = self->state;
  state.registry = metrics::Registry(std::move(constants));
  return {
      [&state](const StepStats& step) { state.registry.add(step); },
      [&state](const RequestStats& request) { state.registry.add(request); },
      [&state](const HttpStats& answer) { state.registry.add(answer); },
      [&state](caf::get_atom) { return state.registry.text(); },
  };
}

}  // namespace troupe
