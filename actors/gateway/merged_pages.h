#pragma once
// Pages that the GATEWAYs of several models answer together: each is asked, and the last answer completes the
// page. Any thread.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http/api/request.h"
#include "http/server/backend.h"

namespace troupe {

/// The texts of /metrics of several models as one, each family once. Samples differ by the label model_name.
std::string merged_metrics(const std::vector<std::string>& texts);

class MergedPages {
 public:
  using Deliver = std::function<void(std::uint32_t io, std::vector<http::Output>&&)>;

  /// In the place of an I/O thread: what is delivered to it is for take().
  static constexpr std::uint32_t kIo = UINT32_MAX;

  /// `models`: how many there are. `deliver`: to the I/O threads.
  MergedPages(std::size_t models, Deliver deliver);

  /// Begins a page. Returns the exchange id with which each model is asked, from kIo.
  std::uint64_t begin(http::Exchange exchange, http::InfoRequest::Kind kind);

  /// What a model has answered.
  void take(std::size_t model, std::vector<http::Output>&& outputs);

 private:
  struct Page {
    http::Exchange exchange;
    http::InfoRequest::Kind kind{};
    std::vector<std::optional<http::Output>> answers;  // by model
    std::size_t missing = 0;
  };
  static http::Output finish(Page& page);

  const std::size_t models_;
  const Deliver deliver_;
  std::mutex mutex_;
  std::map<std::uint64_t, Page> pages_;  // guarded by mutex_, as the next
  std::uint64_t next_ = 1;
};

}  // namespace troupe
