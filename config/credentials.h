#pragma once
// API keys, certificate and private key: read from their files at the start and again on SIGHUP.
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"

namespace troupe::config {

/// Reads --api-key-file, --admin-api-key-file, --ssl-certfile and --ssl-keyfile into the members that hold
/// their contents. Of PEM files only the blocks are kept. Errors name flag and file: not there, no regular
/// file, not readable, empty, larger than 1 MiB. `http` is unchanged then.
Status read_credentials(HttpOptions& http);

/// Those given as flags and those of the file.
std::vector<std::string> all_api_keys(const HttpOptions& http);
std::vector<std::string> all_admin_api_keys(const HttpOptions& http);

/// A sentence for people when `http` lets anyone on the network in: the server listens on more than this
/// machine's own addresses, and no key is asked for. Else empty.
std::string exposure_warning(const HttpOptions& http);

}  // namespace troupe::config
