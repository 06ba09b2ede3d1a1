#pragma once
// A server for one part of a bench.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/server_process.h"

namespace troupe::bench {

/// Ends the program where there is none, with the reason after the bench's name.
inline std::unique_ptr<ServerProcess> started_server(const char* bench,
                                                     const std::vector<std::string>& flags = {}) {
  auto server = ServerProcess::start(flags);
  if (server.ok()) return std::move(*server);
  std::fprintf(stderr, "%s: %s\n", bench, server.status().message.c_str());
  std::exit(1);
}

}  // namespace troupe::bench
