#pragma once
// What happens with a request, without its socket: is it allowed, is its body valid, is it answered here or
// handed to the backend. Immutable, shared by all I/O threads.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "config/options.h"
#include "http/api_keys.h"
#include "http/backend.h"
#include "http/openai_request.h"
#include "http/router.h"

namespace troupe::http {

/// The parts of a request's head that admit() needs. Views into the parser.
struct HeadView {
  std::string_view method;
  std::string_view target;
  std::string_view authorization;
  std::string_view x_api_key;
  std::string_view content_type;
  bool encoded = false;  ///< has a Content-Encoding
};

struct Admission {
  Handler handler = Handler::not_found;
  std::string tail;        ///< of Handler::model, percent-decoded
  std::string_view allow;  ///< for 405
  AnswerStyle style = AnswerStyle::openai;
  Status refusal;          ///< not ok: the answer
};

class FrontDesk {
 public:
  FrontDesk(const config::LimitOptions& limits, ModelFacts model, const Backend& backend);

  /// Decides by the head alone: route, key, media type. Every path needs a key of `keys`, unknown ones too; exempt
  /// is health. `keys` null: none is needed.
  Admission admit(const HeadView& head, Pages pages, const ApiKeys* keys) const;

  /// For an admitted request with its whole body: the Call for the backend, without exchange and time, or the
  /// answer. `draining`: new generation requests are refused.
  std::variant<Call, Output> handle(const Admission& admission, std::string_view body,
                                    std::string_view request_id, bool draining) const;

 private:
  Output health(Handler handler, bool draining) const;

  config::LimitOptions limits_;
  ModelFacts model_;
  std::string openapi_;  ///< the document of /openapi.json
  const Backend& backend_;
};

/// The path of a request target: without its query, and without scheme and host of the absolute form.
std::string_view path_of(std::string_view target);

/// `given` when it is 1 to 128 letters, digits and -_.:/@+=, else empty.
std::string_view sane_request_id(std::string_view given);

}  // namespace troupe::http
