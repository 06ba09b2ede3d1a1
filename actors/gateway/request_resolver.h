#pragma once
// From what a client wrote to what the engine does: every default is resolved here, in one place, so that
// nothing behind it knows an "unset" value. Pure; used by several I/O threads at once.
#include <cstdint>
#include <string>

#include "actors/messages.h"
#include "base/status.h"
#include "http/backend.h"
#include "model/checkpoint/generation_config.h"

namespace troupe {

struct ResolverOptions {
  std::string served_name;      ///< what answers call the model when the request named none
  model::GenerationConfig generation;  ///< of the checkpoint
  std::uint64_t seed = 0;       ///< 0: requests without a seed draw one of their own
};

class RequestResolver {
 public:
  explicit RequestResolver(ResolverOptions options) : options_(std::move(options)) {}

  /// `random` supplies the seed of a request that brings none. A combination that cannot be served is
  /// invalid_argument. InfoRequests of Kind::models and Kind::model are not the engine's and not taken.
  Result<Ask> resolve(const http::Call& call, std::uint64_t random, std::int64_t unix_s) const;

 private:
  Generation generation(const http::SamplingRequest& wanted, std::uint64_t random) const;
  Status chat(const http::ChatRequest& request, std::uint64_t random, Ask& ask) const;
  Status completion(const http::CompletionRequest& request, std::uint64_t random, Ask& ask) const;
  Answer answer(const std::string& id, const std::string& model, const http::SamplingRequest& wanted,
                std::int64_t unix_s) const;

  ResolverOptions options_;
};

}  // namespace troupe
