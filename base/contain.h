#pragma once
// The border that no exception crosses. Threads and actors do what a client has asked for within contain():
// an exception ends that piece of work, with a line in the log and a Status for the client (500), and nothing
// else.
//
// What `work` had changed when it threw stays changed. So it either changes nothing that others use, or the
// caller puts that in order when contain() reports a fault, or it ends the actor: a half-changed state must
// not be used further.
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace troupe {

/// Called with the place at the begin of each contained piece of work. For tests, which make one throw; null
/// otherwise. Any thread may call it.
using FaultHook = void (*)(std::string_view place);
void set_fault_hook(FaultHook hook);

namespace detail {
void reach(std::string_view place);
/// The exception that is being handled, as a Status; logged as "fault" if that does not fail.
Status caught(const Log& log, std::string_view place, std::string_view request_id) noexcept;
}  // namespace detail

/// Does `work`; ok when it ended. Else `internal` (`unavailable` for want of memory), without what was
/// thrown, which is for the log. `place` is a few words; `request_id` may be empty.
template <class Work>
Status contain(const Log& log, std::string_view place, std::string_view request_id, Work&& work) noexcept {
  try {
    detail::reach(place);
    std::forward<Work>(work)();
    return {};
  } catch (...) {
    return detail::caught(log, place, request_id);
  }
}

}  // namespace troupe
