#include "http/batch/batch_objects.h"

#include <utility>

namespace troupe::http {
namespace {

constexpr std::array<std::string_view, kBatchStatuses> kStatusNames{
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"};

/// The members that hold the times of the statuses.
constexpr std::array<std::string_view, kBatchStatuses> kTimeNames{
    "created_at", "in_progress_at", "finalizing_at", "completed_at",
    "failed_at",  "expired_at",     "cancelling_at", "cancelled_at"};

Json time_or_null(std::int64_t time_s) { return time_s == 0 ? Json() : Json(time_s); }
Json text_or_null(const std::string& text, bool shown) { return shown ? Json(text) : Json(); }

Json errors_of(const Batch& batch) {
  if (batch.error.ok()) return {};
  Json error = Json::object();
  json::put(error, "code", batch.error.reason);
  json::put(error, "message", batch.error.message);
  json::put(error, "param", text_or_null(batch.error.param, !batch.error.param.empty()));
  json::put(error, "line", Json());
  Json errors = Json::object();
  json::put(errors, "object", "list");
  json::put(errors, "data", Json::array({std::move(error)}));
  return errors;
}

std::string text_of(const Json& object, std::string_view name) {
  const std::string* text = json::text(json::member(object, name));
  return text == nullptr ? std::string() : *text;
}

std::int64_t number_of(const Json& object, std::string_view name) {
  const Json* number = json::member(object, name);
  return number == nullptr ? 0 : json::integer(*number).value_or(0);
}

}  // namespace

std::string_view to_string(BatchStatus status) { return kStatusNames[static_cast<std::size_t>(status)]; }

Json file_object(const StoredFile& file) {
  Json out = Json::object();
  json::put(out, "id", file.id);
  json::put(out, "object", "file");
  json::put(out, "bytes", file.bytes);
  json::put(out, "created_at", file.created_s);
  json::put(out, "filename", file.name);
  json::put(out, "purpose", file.purpose);
  json::put(out, "status", "processed");
  return out;
}

Json batch_object(const Batch& batch) {
  Json out = Json::object();
  json::put(out, "id", batch.id);
  json::put(out, "object", "batch");
  json::put(out, "endpoint", batch.endpoint);
  json::put(out, "errors", errors_of(batch));
  json::put(out, "input_file_id", batch.input);
  json::put(out, "completion_window", "24h");
  json::put(out, "status", to_string(batch.status));
  json::put(out, "output_file_id", text_or_null(batch.results, batch.has_results));
  json::put(out, "error_file_id", text_or_null(batch.faults, batch.has_faults));
  for (std::size_t i = 0; i < kBatchStatuses; ++i)
    json::put(out, kTimeNames[i], time_or_null(batch.since_s[i]));
  json::put(out, "expires_at", batch.expires_s);
  Json counts = Json::object();
  json::put(counts, "total", batch.total);
  json::put(counts, "completed", batch.completed);
  json::put(counts, "failed", batch.failed);
  json::put(out, "request_counts", std::move(counts));
  json::put(out, "metadata", batch.metadata);
  return out;
}

std::string file_record(const StoredFile& file) {
  Json out = file_object(file);
  json::put(out, "owner", file.owner);
  return json::to_text(out);
}

std::optional<StoredFile> read_file_record(std::string_view text) {
  const auto record = json::parse(text);
  if (!record || text_of(*record, "id").empty()) return std::nullopt;
  return StoredFile{text_of(*record, "id"),
                    text_of(*record, "owner"),
                    text_of(*record, "filename"),
                    text_of(*record, "purpose"),
                    static_cast<std::uint64_t>(number_of(*record, "bytes")),
                    number_of(*record, "created_at")};
}

std::string batch_record(const Batch& batch) {
  Json out = batch_object(batch);
  json::put(out, "owner", batch.owner);
  json::put(out, "results", batch.results);
  json::put(out, "faults", batch.faults);
  json::put(out, "has_results", batch.has_results);
  json::put(out, "has_faults", batch.has_faults);
  if (!batch.error.ok()) {
    json::put(out, "error_code", batch.error.reason);
    json::put(out, "error_message", batch.error.message);
    json::put(out, "error_param", batch.error.param);
  }
  return json::to_text(out);
}

std::optional<Batch> read_batch_record(std::string_view text) {
  const auto record = json::parse(text);
  if (!record) return std::nullopt;
  Batch batch;
  batch.id = text_of(*record, "id");
  batch.owner = text_of(*record, "owner");
  batch.endpoint = text_of(*record, "endpoint");
  batch.input = text_of(*record, "input_file_id");
  batch.results = text_of(*record, "results");
  batch.faults = text_of(*record, "faults");
  batch.has_results = json::is_true(json::member(*record, "has_results"));
  batch.has_faults = json::is_true(json::member(*record, "has_faults"));
  const std::string status = text_of(*record, "status");
  std::size_t place = 0;
  while (place < kBatchStatuses && kStatusNames[place] != status) ++place;
  if (batch.id.empty() || place == kBatchStatuses) return std::nullopt;
  batch.status = static_cast<BatchStatus>(place);
  for (std::size_t i = 0; i < kBatchStatuses; ++i) batch.since_s[i] = number_of(*record, kTimeNames[i]);
  batch.expires_s = number_of(*record, "expires_at");
  if (const Json* counts = json::member(*record, "request_counts")) {
    batch.total = static_cast<std::uint64_t>(number_of(*counts, "total"));
    batch.completed = static_cast<std::uint64_t>(number_of(*counts, "completed"));
    batch.failed = static_cast<std::uint64_t>(number_of(*counts, "failed"));
  }
  if (const Json* metadata = json::given(*record, "metadata")) batch.metadata = *metadata;
  if (std::string why = text_of(*record, "error_message"); !why.empty())
    batch.error = invalid(std::move(why), text_of(*record, "error_param"), text_of(*record, "error_code"));
  return batch;
}

}  // namespace troupe::http
