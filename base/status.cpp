#include "base/status.h"

namespace troupe {

const char* to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid_argument: return "invalid_argument";
    case Code::unauthorized: return "unauthorized";
    case Code::forbidden: return "forbidden";
    case Code::not_found: return "not_found";
    case Code::too_large: return "too_large";
    case Code::overloaded: return "overloaded";
    case Code::cancelled: return "cancelled";
    case Code::unavailable: return "unavailable";
    case Code::timeout: return "timeout";
    case Code::unsupported: return "unsupported";
    case Code::internal: return "internal";
  }
  return "unknown";
}

}  // namespace troupe
