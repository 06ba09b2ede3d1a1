#include "actors/front/request_traces.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"

namespace troupe {

std::string trace_details(std::span<const LogField> fields) {
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

RequestTrace* RequestTraces::known(std::string_view id) {
  const auto found =
      std::find_if(requests_.rbegin(), requests_.rend(), [&](const auto& r) { return r.id == id; });
  return found == requests_.rend() ? nullptr : &*found;
}

void RequestTraces::event(std::string_view actor, std::string_view event, std::span<const LogField> fields) {
  if (fields.empty() || fields[0].key != "req") return;
  add(fields[0].text, actor, event, trace_details(fields.subspan(1)), now_ns());
}

void RequestTraces::add(std::string_view id, std::string_view actor, std::string_view event,
                        std::string details, std::int64_t at_ns) {
  const bool begins = event == "admitted";
  const std::lock_guard lock(mutex_);
  RequestTrace* request = begins ? nullptr : known(id);
  if (request == nullptr) {
    if (!begins && event != "refused") return;
    if (requests_.size() == kMaxRequests) requests_.pop_front();
    request = &requests_.emplace_back(RequestTrace{std::string(id), at_ns, {}});
  }
  if (request->steps.size() == kMaxSteps) return;
  TraceStep step{std::string(actor), std::string(event), at_ns - request->began_ns, std::move(details)};
  // Events of another process come late.
  const auto later = std::find_if(request->steps.begin(), request->steps.end(),
                                  [&](const TraceStep& other) { return other.after_ns > step.after_ns; });
  request->steps.insert(later, std::move(step));
}

std::vector<RequestTrace> RequestTraces::latest(std::size_t count) const {
  const std::lock_guard lock(mutex_);
  const auto wanted = static_cast<std::ptrdiff_t>(std::min(count, requests_.size()));
  return {requests_.rbegin(), requests_.rbegin() + wanted};
}

std::optional<RequestTrace> RequestTraces::find(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(requests_.rbegin(), requests_.rend(), [&](const auto& r) { return r.id == id; });
  if (found == requests_.rend()) return {};
  return *found;
}

}  // namespace troupe
