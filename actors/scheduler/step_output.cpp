#include "actors/scheduler/step_output.h"

namespace troupe {

void StepOutput::clear() {
  for (HostTokens& host : hosts) {
    host.step.sequences.clear();
    host.step.tokens.clear();
    host.step.scores.clear();
    host.step.tops.clear();
    host.step.embeddings.clear();
    host.step.errors.clear();
  }
  stats = {};
}

}  // namespace troupe
