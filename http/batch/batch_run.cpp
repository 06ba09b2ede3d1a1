#include "http/batch/batch_run.h"

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

namespace troupe::http {
namespace {

constexpr std::uint64_t kMostRequests = 1'000'000;

}  // namespace

Result<std::uint64_t> BatchRun::count(const std::string& path, std::size_t most_line_bytes) {
  auto reader = LineReader::open(path, most_line_bytes);
  if (!reader.ok()) return reader.status();
  std::uint64_t lines = 0;
  while (lines <= kMostRequests && reader->next()) ++lines;
  if (!reader->status().ok()) return reader->status();
  if (lines == 0) return invalid("The input file has no request", "input_file_id", "empty_file");
  if (lines > kMostRequests) {
    return invalid("The input file has more than " + std::to_string(kMostRequests) + " requests",
                   "input_file_id", "too_many_requests");
  }
  return lines;
}

Result<std::unique_ptr<BatchRun>> BatchRun::open(const BatchPaths& paths, std::string id,
                                                 std::string endpoint, std::size_t most_line_bytes) {
  auto reader = LineReader::open(paths.input, most_line_bytes);
  if (!reader.ok()) return reader.status();
  std::unordered_set<std::uint64_t> finished;
  const auto note = [&](std::string_view text) {
    const std::uint64_t line = line_of_result(id, text);
    return line != 0 && finished.insert(line).second;
  };
  auto results = LineAppender::open(paths.results, note);
  if (!results.ok()) return results.status();
  const std::uint64_t completed = finished.size();
  auto faults = LineAppender::open(paths.faults, note);
  if (!faults.ok()) return faults.status();
  std::unique_ptr<BatchRun> run(new BatchRun(std::move(id), std::move(endpoint), *std::move(reader),
                                             *std::move(results), *std::move(faults)));
  run->completed_ = completed;
  run->failed_ = finished.size() - completed;
  run->finished_ = std::move(finished);
  return run;
}

Result<BatchResults> BatchRun::stored(const BatchPaths& paths, const std::string& id) {
  std::unordered_set<std::uint64_t> finished;
  const auto note = [&](std::string_view text) {
    const std::uint64_t line = line_of_result(id, text);
    return line != 0 && finished.insert(line).second;
  };
  const auto read = [&](const std::string& path, std::uint64_t& lines, std::uint64_t& bytes) -> Status {
    if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return {};
    const std::size_t before = finished.size();
    const auto file = LineAppender::open(path, note);
    if (!file.ok()) return file.status();
    lines = finished.size() - before;
    bytes = file->bytes();
    return {};
  };
  BatchResults results;
  Status status = read(paths.results, results.completed, results.result_bytes);
  if (status.ok()) status = read(paths.faults, results.failed, results.fault_bytes);
  if (!status.ok()) return status;
  return results;
}

/// The next request that has no line yet. With `instead` each gets that error.
std::optional<BatchRun::Next> BatchRun::read_next(const Status* instead) {
  while (auto line = reader_.next()) {
    BatchLine request = read_batch_line(line->text, endpoint_);
    if (line->too_long)
      request.refusal = {Code::too_large, "the line is longer than a request may be", {}, "line_too_long"};
    // Two texts with one hash are 1 in 10^7 for the largest batch.
    if (request.refusal.ok() && !ids_.insert(std::hash<std::string>()(request.custom_id)).second) {
      request.refusal = invalid("custom_id \"" + request.custom_id + "\" stands in an earlier line, too",
                                "custom_id", "duplicate_custom_id");
    }
    if (finished_.contains(line->number)) continue;
    if (request.refusal.ok() && instead == nullptr) return Next{line->number, std::move(request)};
    record({.line = line->number,
            .custom_id = request.custom_id,
            .status = 0,
            .request_id = {},
            .body = {},
            .error = request.refusal.ok() ? *instead : request.refusal});
  }
  exhausted_ = true;
  return std::nullopt;
}

std::optional<BatchRun::Next> BatchRun::next() {
  std::optional<Next> next;
  if (!again_.empty()) {
    next = std::move(again_.front());
    again_.pop_front();
  } else if (!exhausted_) {
    next = read_next(nullptr);
  }
  if (next) ++in_flight_;
  return next;
}

void BatchRun::record(const LineResult& result) {
  const bool good = result.status == 200;
  (good ? results_ : faults_).append(result_line(id_, result));
  ++(good ? completed_ : failed_);
}

void BatchRun::finish(LineResult result) {
  --in_flight_;
  record(result);
}

void BatchRun::give_up(const Status& why) {
  for (const Next& next : again_) {
    record({.line = next.line,
            .custom_id = next.request.custom_id,
            .status = 0,
            .request_id = {},
            .body = {},
            .error = why});
  }
  again_.clear();
  if (!exhausted_) read_next(&why);
}

Status BatchRun::sync() {
  if (Status status = results_.sync(); !status.ok()) return status;
  return faults_.sync();
}

}  // namespace troupe::http
