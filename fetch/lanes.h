#pragma once
// Several GETs at a time in one thread (libcurl's multi interface), each with a number of the caller's.
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fetch/http_get.h"

namespace troupe::fetch {

class Lanes {
 public:
  explicit Lanes(const std::atomic<bool>& stop);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  std::size_t busy() const { return running_.size(); }
  /// Starts a transfer. `id` is free to be used again once it was in a Finished.
  void start(std::size_t id, GetRequest request, HttpGet::Body body);

  struct Finished {
    std::size_t id = 0;
    Outcome outcome;
    double retry_after_s = 0;
  };
  /// Waits up to `milliseconds` for bytes and passes them on. Returns the transfers that ended.
  std::vector<Finished> run(int milliseconds);

 private:
  void* multi_;
  const std::atomic<bool>& stop_;
  std::map<void*, std::pair<std::size_t, std::unique_ptr<HttpGet>>> running_;  ///< by HttpGet::handle()
};

}  // namespace troupe::fetch
