// The answers of /v1/files and /v1/batches.
#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <variant>

#include "http/api/fields.h"
#include "http/api/openai_error.h"
#include "http/batch/batch_service.h"
#include "http/batch/upload.h"

namespace troupe::http {
namespace {

using Resource = StoreRequest::Resource;
using Verb = StoreRequest::Verb;

constexpr std::int64_t kWindowS = 24 * 3600;
constexpr JsonBounds kOrderBounds{.depth = 16, .elements = 1000};
constexpr std::size_t kMostMetadata = 16;
constexpr std::int64_t kMostFilesListed = 10'000, kMostBatchesListed = 100, kBatchesListed = 20;

Output object_output(const Json& object) {
  Output output{.kind = Output::Kind::whole};
  output.body = json::to_text(object);
  return output;
}

Output refusal(const Status& status) { return error_output(0, status); }

Status missing(std::string_view what, const std::string& id) {
  return {Code::not_found,
          "There is no " + std::string(what) + " \"" + id.substr(0, 64) + "\" of this API key", "id",
          "not_found"};
}

/// The page of a list that a query asks for, of what is in the order of the answer.
template <class Item, class Show>
Output list_output(const std::vector<const Item*>& items, const StoreRequest& request, std::int64_t most,
                   std::int64_t usual, Show show) {
  std::int64_t limit = usual;
  if (!request.limit.empty()) {
    const char* end = request.limit.data() + request.limit.size();
    const auto [read, error] = std::from_chars(request.limit.data(), end, limit);
    if (error != std::errc() || read != end || limit < 1 || limit > most) {
      return refusal(invalid("limit is \"" + request.limit.substr(0, 32) +
                                 "\"; it must be a whole number from 1 to " + std::to_string(most),
                             "limit", "out_of_range"));
    }
  }
  auto first = items.begin();
  if (!request.after.empty()) {
    first = std::ranges::find_if(items, [&](const Item* item) { return item->id == request.after; });
    if (first == items.end()) return refusal(missing("object to list after,", request.after));
    ++first;
  }
  const auto last = items.end() - first > limit ? first + limit : items.end();
  Json data = Json::array();
  for (auto item = first; item != last; ++item) data.push_back(show(**item));
  Json list = Json::object();
  json::put(list, "object", "list");
  json::put(list, "data", std::move(data));
  json::put(list, "first_id", first == last ? Json() : Json((*first)->id));
  json::put(list, "last_id", first == last ? Json() : Json((*(last - 1))->id));
  json::put(list, "has_more", last != items.end());
  return object_output(list);
}

std::int64_t created_s(const StoredFile& file) { return file.created_s; }
std::int64_t created_s(const Batch& batch) { return batch.created_s(); }

/// Newest first.
template <class Item>
void sort_newest_first(std::vector<const Item*>& items) {
  std::ranges::sort(items, [](const Item* a, const Item* b) {
    return std::pair(created_s(*a), a->id) > std::pair(created_s(*b), b->id);
  });
}

Status check_metadata(const Json& metadata) {
  const auto& members = json::members(metadata);
  const bool texts = std::ranges::all_of(members, [](const auto& member) {
    const std::string* text = json::text(member.second);
    return text != nullptr && member.first.size() <= 64 && text->size() <= 512;
  });
  if (metadata.is_object() && texts && members.size() <= kMostMetadata) return {};
  return invalid(
      "metadata must be an object of at most 16 texts of at most 512 bytes, with names of at most 64 bytes",
      "metadata", "invalid_value");
}

}  // namespace

void BatchService::answer(Call& call) {
  const StoreRequest& request = std::get<StoreRequest>(call.body);
  Output output;
  switch (request.resource) {
    case Resource::files: output = answer_files(request); break;
    case Resource::file:
    case Resource::content: output = answer_file(request); break;
    case Resource::batches: output = answer_batches(request); break;
    case Resource::batch:
    case Resource::cancel: output = answer_batch(request); break;
  }
  output.exchange_id = call.exchange.id;
  std::vector<Output> answers;
  answers.push_back(std::move(output));
  setup_.deliver(call.exchange.io, std::move(answers));
}

Output BatchService::answer_files(const StoreRequest& request) {
  if (request.verb == Verb::post) {
    const auto file = keep(request);
    return file.ok() ? object_output(file_object(*file)) : refusal(file.status());
  }
  std::vector<const StoredFile*> files;
  for (const auto& [id, file] : store_.files()) {
    if (file.owner != request.owner) continue;
    if (request.purpose.empty() || file.purpose == request.purpose) files.push_back(&file);
  }
  sort_newest_first(files);
  if (request.order == "asc") std::ranges::reverse(files);
  return list_output(files, request, kMostFilesListed, kMostFilesListed, file_object);
}

Result<StoredFile> BatchService::keep(const StoreRequest& request) {
  auto* upload = dynamic_cast<Upload*>(request.upload.get());
  if (upload == nullptr) return failure(Code::internal, "the file was not received");
  if (Status status = upload->close(); !status.ok()) return status;
  const std::string purpose = upload->form().field("purpose");
  if (purpose != "batch") {
    return invalid("purpose is \"" + purpose.substr(0, 64) + "\"; allowed is batch", "purpose",
                   "invalid_value");
  }
  auto file = store_.add({{}, request.owner, upload->form().file_name(), purpose, upload->bytes(), now_s()},
                         upload->path());
  if (file.ok()) upload->release();
  return file;
}

Output BatchService::answer_file(const StoreRequest& request) {
  const StoredFile* file = store_.file(request.id, request.owner);
  if (file == nullptr) return refusal(missing("file", request.id));
  if (request.verb == Verb::remove) return remove_file(request);
  if (request.resource == Resource::file) return object_output(file_object(*file));
  OwnedFd opened(::open(store_.path_of(file->id).c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) return refusal(failure(Code::internal, "the file is not there any more"));
  Output output{.kind = Output::Kind::whole, .content = Output::Content::lines};
  output.file = std::make_shared<FileBody>(FileBody{std::move(opened), file->bytes});
  return output;
}

Output BatchService::remove_file(const StoreRequest& request) {
  const auto user = std::ranges::find_if(store_.batches(), [&](const auto& entry) {
    return entry.second.input == request.id && !is_final(entry.second.status);
  });
  if (user != store_.batches().end()) {
    return refusal(
        invalid("The file is in use by " + user->first + ": cancel that batch first", "id", "file_in_use"));
  }
  store_.remove(request.id);
  Json out = Json::object();
  json::put(out, "id", request.id);
  json::put(out, "object", "file");
  json::put(out, "deleted", true);
  return object_output(out);
}

Output BatchService::answer_batches(const StoreRequest& request) {
  if (request.verb == Verb::post) {
    const auto batch = create(request);
    return batch.ok() ? object_output(batch_object(*batch)) : refusal(batch.status());
  }
  std::vector<const Batch*> batches;
  for (const auto& [id, batch] : store_.batches()) {
    if (batch.owner == request.owner) batches.push_back(&batch);
  }
  sort_newest_first(batches);
  return list_output(batches, request, kMostBatchesListed, kBatchesListed, batch_object);
}

Result<Batch> BatchService::create(const StoreRequest& request) {
  auto body = parse_json(request.body, kOrderBounds);
  if (!body.ok()) return body.status();
  if (!body->is_object()) return invalid("The body must be a JSON object", {}, "invalid_json");
  Fields fields(*body);
  Batch batch;
  batch.input = fields.string("input_file_id").value_or("");
  batch.endpoint = fields.string("endpoint").value_or("");
  const std::string window = fields.string("completion_window").value_or("24h");
  if (!fields.ok()) return fields.status();
  const StoredFile* file = store_.file(batch.input, request.owner);
  if (file == nullptr) {
    Status status = missing("file", batch.input);
    status.code = Code::invalid_argument;
    status.param = "input_file_id";
    return status;
  }
  if (file->purpose != "batch")
    return invalid("input_file_id names a file whose purpose is not batch", "input_file_id", "invalid_value");
  if (batch_route(batch.endpoint) == nullptr) {
    return invalid("endpoint is \"" + cut(batch.endpoint) + "\"; allowed are " + batch_urls(), "endpoint",
                   "invalid_value");
  }
  if (window != "24h") {
    return invalid("completion_window is \"" + cut(window) + "\"; allowed is 24h", "completion_window",
                   "invalid_value");
  }
  if (const Json* metadata = fields.find("metadata")) {
    if (Status status = check_metadata(*metadata); !status.ok()) return status;
    batch.metadata = *metadata;
  }
  batch.id = BatchStore::fresh_id("batch_");
  batch.owner = request.owner;
  batch.results = BatchStore::fresh_id("file-");
  batch.faults = BatchStore::fresh_id("file-");
  batch.enter(BatchStatus::validating, now_s());
  batch.expires_s = batch.created_s() + kWindowS;
  if (Status status = store_.put(batch); !status.ok()) return status;
  active_.emplace(batch.id, Active{});
  order_.push_back(batch.id);
  return batch;
}

Output BatchService::answer_batch(const StoreRequest& request) {
  const Batch* known = store_.batch(request.id, request.owner);
  if (known == nullptr) return refusal(missing("batch", request.id));
  const auto active = active_.find(request.id);
  if (request.resource == Resource::cancel) {
    if (is_final(known->status) || active == active_.end()) {
      return refusal(invalid(
          "The batch is " + std::string(to_string(known->status)) + " already: nothing is left to cancel",
          "id", "not_cancellable"));
    }
    Batch batch = *known;
    if (batch.status != BatchStatus::cancelling) batch.enter(BatchStatus::cancelling, now_s());
    if (active->second.run != nullptr) withdraw(request.id, active->second);
    active->second.ending = BatchStatus::cancelled;
    put(batch);
  }
  Batch batch = *store_.batch(request.id, request.owner);
  if (active != active_.end() && active->second.run != nullptr) {
    batch.completed = active->second.run->completed();
    batch.failed = active->second.run->failed();
  }
  return object_output(batch_object(batch));
}

}  // namespace troupe::http
