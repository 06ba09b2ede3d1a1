#include "actors/gateway/merged_pages.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace troupe {
namespace {

struct Family {
  std::string head;  // the lines with HELP and TYPE
  std::string samples;
};

}  // namespace

std::string merged_metrics(const std::vector<std::string>& texts) {
  std::vector<Family> families;
  std::map<std::string, std::size_t, std::less<>> places;
  for (const std::string& text : texts) {
    std::size_t family = families.size();
    bool fresh_head = false;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (line.empty()) continue;
      if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
        const std::string_view after = line.substr(7);
        const std::string_view name = after.substr(0, after.find(' '));
        const auto [place, fresh] = places.try_emplace(std::string(name), families.size());
        if (fresh) families.emplace_back();
        fresh_head = fresh || (family == place->second && fresh_head);
        family = place->second;
        if (fresh_head) families[family].head += std::string(line) + "\n";
      } else if (!line.starts_with('#') && family < families.size()) {
        families[family].samples += std::string(line) + "\n";
      }
    }
  }
  std::string out;
  for (const Family& family : families) out += family.head + family.samples;
  return out;
}

MergedPages::MergedPages(std::size_t models, Deliver deliver)
    : models_(models), deliver_(std::move(deliver)) {}

std::uint64_t MergedPages::begin(http::Exchange exchange, http::InfoRequest::Kind kind) {
  const std::lock_guard lock(mutex_);
  Page page{exchange, kind, {}, models_};
  page.answers.resize(models_);
  pages_.emplace(next_, std::move(page));
  return next_++;
}

void MergedPages::take(std::size_t model, std::vector<http::Output>&& outputs) {
  for (http::Output& output : outputs) {
    Page page;
    {
      const std::lock_guard lock(mutex_);
      const auto found = pages_.find(output.exchange_id);
      if (found == pages_.end() || found->second.answers[model]) continue;
      found->second.answers[model] = std::move(output);
      if (--found->second.missing > 0) continue;
      page = std::move(found->second);
      pages_.erase(found);
    }
    http::Output whole = finish(page);
    whole.exchange_id = page.exchange.id;
    std::vector<http::Output> out;
    out.push_back(std::move(whole));
    deliver_(page.exchange.io, std::move(out));
  }
}

/// Of metrics those of the models that answered; of anything else the first failure, if there is one.
http::Output MergedPages::finish(Page& page) {
  const auto good = [](const std::optional<http::Output>& answer) { return answer->status == 200; };
  const auto failed = std::find_if_not(page.answers.begin(), page.answers.end(), good);
  if (page.kind == http::InfoRequest::Kind::metrics) {
    std::vector<std::string> texts;
    for (auto& answer : page.answers) {
      if (good(answer)) texts.push_back(std::move(answer->body));
    }
    if (texts.empty()) return std::move(**failed);
    http::Output out{.kind = http::Output::Kind::whole, .content = http::Output::Content::metrics};
    out.body = merged_metrics(texts);
    return out;
  }
  if (failed != page.answers.end()) return std::move(**failed);
  std::int64_t forgotten = 0;
  for (const auto& answer : page.answers) {
    const std::optional<Json> page_of_it = json::parse(answer->body);
    const Json* const count = page_of_it ? json::member(*page_of_it, "forgotten_blocks") : nullptr;
    if (count != nullptr) forgotten += json::integer(*count).value_or(0);
  }
  http::Output out{.kind = http::Output::Kind::whole};
  out.body = R"({"forgotten_blocks":)" + std::to_string(forgotten) + "}";
  return out;
}

}  // namespace troupe
