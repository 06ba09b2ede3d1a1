#pragma once
// Files and batches as OpenAI's API has them: their members, and their JSON for clients.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace troupe::http {

struct StoredFile {
  std::string id;       ///< "file-…"
  std::string owner;    ///< of ApiKeys::owner(): only requests with this key see it
  std::string name;     ///< as the client named it; never used as a path
  std::string purpose;  ///< batch, or batch_output
  std::uint64_t bytes = 0;
  std::int64_t created_s = 0;  ///< Unix time
};

enum class BatchStatus : std::uint8_t {
  validating,
  in_progress,
  finalizing,
  completed,
  failed,  ///< its file cannot be used, or its results cannot be kept
  expired,
  cancelling,
  cancelled,
};
inline constexpr std::size_t kBatchStatuses = 8;

std::string_view to_string(BatchStatus status);

/// True for one that will not change any more.
constexpr bool is_final(BatchStatus status) {
  return status == BatchStatus::completed || status == BatchStatus::failed ||
         status == BatchStatus::expired || status == BatchStatus::cancelled;
}

struct Batch {
  std::string id;  ///< "batch_…"
  std::string owner;
  std::string endpoint;
  std::string input;    ///< id of the file with the requests
  std::string results;  ///< ids of the files with answers and with errors, which exist in the directory from
  std::string faults;   ///< the start and are shown when the batch has ended
  bool has_results = false;
  bool has_faults = false;
  BatchStatus status = BatchStatus::validating;
  std::array<std::int64_t, kBatchStatuses> since_s{};  ///< Unix time of each status; 0: it has not had it
  std::int64_t expires_s = 0;
  std::uint64_t total = 0;      ///< requests; 0 until they are counted
  std::uint64_t completed = 0;  ///< with an answer of 200
  std::uint64_t failed = 0;
  Json metadata;  ///< the client's; null: none
  Status error;   ///< why it has failed, or why the next server does not know that it has ended

  std::int64_t created_s() const { return since_s[static_cast<std::size_t>(BatchStatus::validating)]; }
  void enter(BatchStatus next, std::int64_t now_s) {
    status = next;
    since_s[static_cast<std::size_t>(next)] = now_s;
  }
};

/// The objects of OpenAI's API.
Json file_object(const StoredFile& file);
Json batch_object(const Batch& batch);

/// What is kept on disk, and back. Nothing for what is no such text.
std::string file_record(const StoredFile& file);
std::optional<StoredFile> read_file_record(std::string_view text);
std::string batch_record(const Batch& batch);
std::optional<Batch> read_batch_record(std::string_view text);

}  // namespace troupe::http
