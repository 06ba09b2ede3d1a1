#include "actors/gateway/http_side.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "http/openai_error.h"

namespace troupe {
namespace {

std::uint64_t random_seed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

HttpSide::HttpSide(GatewayPorts ports, RequestResolver resolver, std::vector<http::ModelCard> models,
                   std::shared_ptr<const HealthCell> health, Log log)
    : ports_(std::move(ports)),
      resolver_(std::move(resolver)),
      models_(std::move(models)),
      health_(std::move(health)),
      log_(std::move(log)) {}

void HttpSide::submit(http::Call&& call) {
  if (const auto* page = std::get_if<http::InfoRequest>(&call.body)) {
    if (page->kind == http::InfoRequest::Kind::models || page->kind == http::InfoRequest::Kind::model) {
      models(call, *page);
      return;
    }
  }
  for (const std::string& field : call.ignored_fields) {
    log_.info("unknown_field", {kv("req", call.request_id), kv("field", field)});
  }
  auto ask = resolver_.resolve(call, random_seed(), unix_seconds());
  if (!ask.ok()) {
    answer(call, http::error_output(call.exchange.id, ask.status()));
    return;
  }
  ports_.ask(*std::move(ask));
}

void HttpSide::cancel(http::Exchange exchange) { ports_.withdraw({exchange.io, exchange.id}); }

void HttpSide::answered(const http::AccessRecord& record) {
  const double ms = std::chrono::duration<double, std::milli>(record.duration).count();
  log_.info("answered", {kv("req", record.request_id), kv("method", record.method), kv("path", record.target),
                         kv("status", record.status), kv("bytes", record.bytes), kv("ms", ms)});
  if (record.status == 200 && !record.failed && metrics::is_generation(record.target)) {
    served_.fetch_add(1, std::memory_order_relaxed);
  }
  ports_.count({std::string(metrics::route_label(record.target)), record.status});
}

void HttpSide::models(const http::Call& call, const http::InfoRequest& page) const {
  if (page.kind == http::InfoRequest::Kind::models) {
    answer(call, page_output(call.exchange.id, http::format_models(models_)));
    return;
  }
  const auto card = std::find_if(models_.begin(), models_.end(), [&](const auto& m) { return m.id == page.name; });
  if (card == models_.end()) {
    Status status = failure(Code::not_found, "model \"" + page.name.substr(0, 64) + "\" is not served here");
    status.param = "model";
    status.reason = "model_not_found";
    answer(call, http::error_output(call.exchange.id, status));
    return;
  }
  answer(call, page_output(call.exchange.id, http::format_model(*card)));
}

void HttpSide::answer(const http::Call& call, http::Output output) const {
  deliver_one(ports_.deliver, call.exchange.io, std::move(output));
}

http::Output page_output(std::uint64_t exchange, std::string body, http::Output::Content content) {
  http::Output output{.exchange_id = exchange, .kind = http::Output::Kind::whole, .content = content};
  output.body = std::move(body);
  return output;
}

void deliver_one(const decltype(GatewayPorts::deliver)& deliver, std::uint32_t io, http::Output output) {
  std::vector<http::Output> outputs;
  outputs.push_back(std::move(output));
  deliver(io, std::move(outputs));
}

}  // namespace troupe
