#pragma once
// What SCHEDULER calls to give a front its tokens: from the step to the ring without another actor.
#include <cstdint>
#include <memory>

#include "actors/link_messages.h"
#include "actors/messages.h"
#include "actors/observation_messages.h"

namespace troupe {

/// No call waits.
class FrontPort {
 public:
  virtual ~FrontPort() = default;
  /// One step's tokens for the front's SESSION HOST of this index.
  virtual void tokens(std::uint32_t host, const StepTokens& tokens) = 0;
  virtual void refused(std::uint32_t host, const Refused& refused) = 0;
  virtual void stats(const StepStats& stats) = 0;
  /// The front has not taken so many steps that no more should be run for it. FrontReady follows.
  virtual bool behind() const = 0;
};

}  // namespace troupe
