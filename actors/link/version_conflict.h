#pragma once
// The two ends of a link are programs that speak one version of its messages, or do not work together.
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/wire.h"

namespace troupe {

/// One end of a link, for people: who it is, and of which build.
struct LinkEnd {
  std::string_view name, build;
};

/// Why `self` cannot work with `peer`, which speaks this version of the messages, in one sentence; empty when
/// it can.
inline std::string version_conflict(const LinkEnd& peer, std::uint32_t version, const LinkEnd& self) {
  if (version == wire::kMessagesVersion) return {};
  return std::string(peer.name) + ", of build " + std::string(peer.build) + ", speaks version " +
         std::to_string(version) + " of the link's messages; " + std::string(self.name) + ", of build " +
         std::string(self.build) + ", speaks " + std::to_string(wire::kMessagesVersion);
}

}  // namespace troupe
