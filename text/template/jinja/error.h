#pragma once
// How a template fails, inside this folder only: Template::compile and Template::render catch it and return a
// Status. Evaluation is a deep recursion in which nearly every operation can fail and the first failure ends
// all of it, so failures are exceptions here; none leaves the two functions.
#include <stdexcept>
#include <string>

namespace troupe::jinja {

struct Error : std::runtime_error {
  explicit Error(const std::string& message, int line_number = 0)
      : std::runtime_error(message), line(line_number) {}
  int line;  ///< of the template, from 1; 0 while unknown
};

/// A limit of RenderLimits was exceeded.
struct LimitError : Error {
  using Error::Error;
};

/// The template uses a filter, test, function or method that does not exist here.
struct MissingNameError : Error {
  using Error::Error;
};

/// The template called raise_exception(): the message goes to the client unchanged.
struct RaisedError : Error {
  using Error::Error;
};

}  // namespace troupe::jinja
