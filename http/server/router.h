#pragma once
// Which handler serves a method and a path. Paths are compared byte for byte, nothing is decoded or merged: a
// route has one spelling, so no check of it can be bypassed by another.
#include <cstdint>
#include <string_view>

#include "http/api/answer_style.h"

namespace troupe::http {

enum class Handler : std::uint8_t {
  not_found,
  method_not_allowed,
  chat,
  completions,
  responses,
  messages,
  count_tokens,
  tokenize,
  detokenize,
  models,
  model,
  health,  ///< ready or not, under the names that load balancers use
  live,
  metrics,
  config_info,
  reset_prefix_cache,
  openapi,
  page,     ///< for people: http/pages/pages.h
  events,   ///< the live state of the engine
  options,  ///< what a page takes, also asked by browsers before a request to another origin
};

/// What a listening socket serves.
enum class Pages : std::uint8_t { api, operations, both };

struct Route {
  Handler handler = Handler::not_found;
  std::string_view allow;                   ///< of method_not_allowed and options: the Allow header
  std::string_view tail;                    ///< of model: what follows /v1/models/; of page: the path
  AnswerStyle style = AnswerStyle::openai;  ///< of the page, also when it does not take the method
};

/// `path` is the target without its query. HEAD is taken wherever GET is.
Route route(std::string_view method, std::string_view path, Pages pages);

/// Health and pages need no key, and neither does OPTIONS, to which browsers cannot add one; everything else does.
constexpr bool needs_key(Handler handler) {
  switch (handler) {
    case Handler::health:
    case Handler::live:
    case Handler::page:
    case Handler::options: return false;
    default: return true;
  }
}

/// What only an admin key opens when keys are asked for: to change the server, and to see what all its clients do.
constexpr bool needs_admin(Handler handler) {
  return handler == Handler::reset_prefix_cache || handler == Handler::events;
}

/// True when the handler reads a JSON body.
constexpr bool takes_json(Handler handler) {
  switch (handler) {
    case Handler::chat:
    case Handler::completions:
    case Handler::responses:
    case Handler::messages:
    case Handler::count_tokens:
    case Handler::tokenize:
    case Handler::detokenize: return true;
    default: return false;
  }
}

/// True when the handler changes the server or has it compute: no web page of a foreign origin may do that.
constexpr bool acts(Handler handler) { return handler == Handler::reset_prefix_cache || takes_json(handler); }

/// In whose words the handler's answers and errors are told.
constexpr AnswerStyle style_of(Handler handler) {
  if (handler == Handler::messages || handler == Handler::count_tokens) return AnswerStyle::messages;
  return handler == Handler::responses ? AnswerStyle::responses : AnswerStyle::openai;
}

}  // namespace troupe::http
