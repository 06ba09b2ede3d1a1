#pragma once
// What a SESSION HOST calls to have sequences run. What is behind it may be another process.
#include <cstdint>

#include "actors/messages.h"

namespace troupe {

/// Any thread; no call waits.
class EngineSide {
 public:
  virtual ~EngineSide() = default;
  /// Accepted without an answer; a refusal comes as Refused, tokens as StepTokens, both to the host that the
  /// sequences name. Dropped when the engine of that epoch is gone: EngineDown has come then, or comes.
  virtual void submit(Submit&& request, std::uint32_t epoch) = 0;
  /// Ends sequences of the engine of that epoch.
  virtual void cancel(Cancel&& request, std::uint32_t epoch) = 0;
  /// A prompt that another engine computes will probably go on at the engine of that epoch, which copies its
  /// blocks meanwhile; or that engine need not any more.
  virtual void expect(ExpectBlocks&& prompt, std::uint32_t epoch) = 0;
  virtual void forget(ForgetBlocks&& prompts, std::uint32_t epoch) = 0;
  /// A StepTokens was taken: the engine runs no more steps than a bounded number beyond those that were.
  virtual void took_step() = 0;
};

}  // namespace troupe
