#include "fetch/lanes.h"

#include <curl/curl.h>

namespace troupe::fetch {

Lanes::Lanes(const std::atomic<bool>& stop) : multi_(curl_multi_init()), stop_(stop) {}

Lanes::~Lanes() {
  for (const auto& [handle, transfer] : running_)
    curl_multi_remove_handle(static_cast<CURLM*>(multi_), handle);
  curl_multi_cleanup(static_cast<CURLM*>(multi_));
}

void Lanes::start(std::size_t id, GetRequest request, HttpGet::Body body) {
  auto get = std::make_unique<HttpGet>(std::move(request), std::move(body), stop_);
  void* handle = get->handle();
  curl_multi_add_handle(static_cast<CURLM*>(multi_), handle);
  running_.emplace(handle, std::pair(id, std::move(get)));
}

std::vector<Lanes::Finished> Lanes::run(int milliseconds) {
  auto* multi = static_cast<CURLM*>(multi_);
  int running = 0, left = 0;
  curl_multi_poll(multi, nullptr, 0, milliseconds, nullptr);
  curl_multi_perform(multi, &running);
  std::vector<Finished> out;
  while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const int code = message->data.result;
    const auto found = running_.find(message->easy_handle);
    curl_multi_remove_handle(multi, message->easy_handle);
    if (found == running_.end()) continue;
    HttpGet& get = *found->second.second;
    Outcome outcome = get.finish(code);
    out.push_back({found->second.first, std::move(outcome), get.head().retry_after_s});
    running_.erase(found);
  }
  return out;
}

}  // namespace troupe::fetch
