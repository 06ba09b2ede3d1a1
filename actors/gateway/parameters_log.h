#pragma once
#include "actors/messages.h"
#include "base/log.h"

namespace troupe {

/// Writes the event "parameters": what a request asks for, every default resolved, without its prompts. Stop
/// strings and bad words are told; of tools, schemas and biases only how many there are. Nothing for requests
/// that generate nothing.
void log_parameters(const Log& log, const Ask& ask);

}  // namespace troupe
