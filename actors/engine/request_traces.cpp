#include "actors/engine/request_traces.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"

namespace troupe {
namespace {

std::string details_of(std::span<const LogField> fields) {
  std::string out;
  for (const LogField& field : fields) {
    std::string value;
    switch (field.kind) {
      case LogField::Kind::text:
        if (field.key != "code") continue;
        value = field.text;
        break;
      case LogField::Kind::integer: value = std::to_string(field.integer); break;
      case LogField::Kind::flag: value = field.integer != 0 ? "true" : "false"; break;
      case LogField::Kind::number: {
        char text[32];
        std::snprintf(text, sizeof text, "%.4g", field.number);
        value = text;
        break;
      }
    }
    out += (out.empty() ? "" : " ") + std::string(field.key) + "=" + value;
  }
  return out;
}

}  // namespace

RequestTrace* RequestTraces::known(std::string_view id) {
  const auto found = std::find_if(requests_.rbegin(), requests_.rend(), [&](const auto& r) { return r.id == id; });
  return found == requests_.rend() ? nullptr : &*found;
}

void RequestTraces::event(std::string_view actor, std::string_view event, std::span<const LogField> fields) {
  if (fields.empty() || fields[0].key != "req") return;
  const std::string_view id = fields[0].text;
  const bool begins = event == "admitted";
  const std::int64_t now = now_ns();
  std::string details = details_of(fields.subspan(1));
  const std::lock_guard lock(mutex_);
  RequestTrace* request = begins ? nullptr : known(id);
  if (request == nullptr) {
    if (!begins && event != "refused") return;
    if (requests_.size() == kMaxRequests) requests_.pop_front();
    request = &requests_.emplace_back(RequestTrace{std::string(id), now, {}});
  }
  if (request->steps.size() == kMaxSteps) return;
  request->steps.push_back({std::string(actor), std::string(event), now - request->began_ns, std::move(details)});
}

std::vector<RequestTrace> RequestTraces::latest(std::size_t count) const {
  const std::lock_guard lock(mutex_);
  const auto wanted = static_cast<std::ptrdiff_t>(std::min(count, requests_.size()));
  return {requests_.rbegin(), requests_.rbegin() + wanted};
}

std::optional<RequestTrace> RequestTraces::find(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(requests_.rbegin(), requests_.rend(), [&](const auto& r) { return r.id == id; });
  if (found == requests_.rend()) return {};
  return *found;
}

}  // namespace troupe
