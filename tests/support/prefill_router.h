#pragma once
// A router over one engine of a server, index 0, and one prefill instance, 1.
#include <functional>
#include <memory>
#include <utility>

#include "actors/session/engine_router.h"

namespace troupe::testing {

/// Neither has anything cached; any prompt is long enough for a hand-over.
inline std::shared_ptr<EngineRouter> make_prefill_router(
    std::function<bool(std::uint32_t engine)> responds = {}) {
  EngineRouter::Setup setup;
  for (int engine = 0; engine < 2; ++engine) {
    const auto fd = ipc::BlockNames::create(8, ipc::NamesKey{3, 5});
    setup.names.push_back(
        std::make_shared<ipc::BlockNames>(*ipc::BlockNames::attach(fd->get(), ipc::Access::read)));
  }
  setup.first_prefill = 1;
  setup.min_prompt_tokens = 1;
  setup.responds = std::move(responds);
  return std::make_shared<EngineRouter>(setup);
}

}  // namespace troupe::testing
