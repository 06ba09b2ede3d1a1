#include "actors/grammar/form_worker.h"

#include <limits>
#include <span>
#include <utility>

#include "base/contain.h"
#include "http/api/json_body.h"
#include "text/grammar/form_check.h"

namespace troupe {
namespace {

/// The front has bounded the body that the form came in.
constexpr http::JsonBounds kAsBounded{std::numeric_limits<int>::max(),
                                      std::numeric_limits<std::int64_t>::max()};

}  // namespace

std::optional<FormWorker> FormWorker::make(std::string_view rules, std::string image, int threads) {
  auto read = frames::rules_from_bytes(rules);
  const auto owner = std::make_shared<const std::string>(std::move(image));
  auto texts = VocabularyImage::view(std::as_bytes(std::span(*owner)), owner);
  if (!read || !texts.ok()) return std::nullopt;
  return FormWorker(*std::move(read), *std::move(texts), threads);
}

FormWorker::FormWorker(frames::Rules rules, std::shared_ptr<const VocabularyImage> texts, int threads)
    : rules_(std::move(rules)), texts_(std::move(texts)), threads_(threads) {}

std::optional<std::string> FormWorker::answer(std::string_view bytes) {
  const auto job = frames::job_from_bytes(bytes);
  if (!job) return std::nullopt;
  if (const auto* form = std::get_if<grammar::Form>(&*job)) {
    Result<grammar::Source> source = failure(Code::internal, "a form was not checked");
    if (Status fault = contain(Log(), "form check", {}, [&] { source = check(*form); }); !fault.ok())
      source = std::move(fault);
    return frames::to_bytes(source.status(), source.ok() ? frames::to_bytes(*source) : std::string());
  }
  if (const auto* source = std::get_if<grammar::Source>(&*job)) {
    const auto form = grammar::compile(table(), *source, threads_);
    return frames::to_bytes(form.status(), form.ok() ? (*form)->to_bytes() : std::string());
  }
  (void)table();
  return frames::to_bytes(Status(), {});
}

Result<grammar::Source> FormWorker::check(const grammar::Form& form) const {
  auto value = http::parse_json(form.value, kAsBounded);
  if (!value.ok()) return invalid(form.param + " is not valid JSON", form.param, value.status().reason);
  return grammar::prepare(form.kind, *std::move(value), form.param, *texts_, rules_.any_whitespace,
                          rules_.limits);
}

const grammar::TokenTable& FormWorker::table() {
  if (!table_) table_.emplace(grammar::vocabulary_of(*texts_, rules_.vocabulary, rules_.stop_ids));
  return *table_;
}

}  // namespace troupe
