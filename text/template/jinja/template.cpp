#include "text/template/jinja/template.h"

#include <exception>

#include "text/template/jinja/missing.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/rendering.h"

namespace troupe::jinja {
namespace {

Status failed(const std::exception& error, int line, std::string reason) {
  const std::string place =
      line > 0 ? "chat template, line " + std::to_string(line) + ": " : "chat template: ";
  return invalid(place + error.what(), {}, std::move(reason));
}

}  // namespace

Result<std::shared_ptr<const Template>> Template::compile(std::string_view source) {
  try {
    return std::shared_ptr<const Template>(new Template(parse(source)));
  } catch (const Error& error) {
    return failed(error, error.line, "template_syntax");
  } catch (const std::exception& error) {
    return failed(error, 0, "template_syntax");
  }
}

Template::Template(ParsedTemplate parsed) : parsed_(std::move(parsed)), missing_(missing_names(parsed_)) {}

Result<Text> Template::render(const std::vector<Input>& inputs, const RenderLimits& limits) const {
  const auto context = std::make_shared<Scope>(nullptr);
  Rendering rendering(limits, std::make_shared<Scope>(context));
  try {
    for (const Input& input : inputs) {
      context->set(input.name, from_json(*input.value, input.trusted, rendering.budget));
    }
    Text out;
    run_block(parsed_.body, rendering, out);
    return out;
  } catch (const RaisedError& error) {
    return invalid(error.what(), {}, "template_raised");
  } catch (const LimitError& error) {
    return failed(error, error.line ? error.line : rendering.line, "template_limit");
  } catch (const MissingNameError& error) {
    return failed(error, error.line ? error.line : rendering.line, std::string(kMissingName));
  } catch (const Error& error) {
    return failed(error, error.line ? error.line : rendering.line, "template_error");
  } catch (const std::exception& error) {
    return failed(error, rendering.line, "template_error");
  }
}

}  // namespace troupe::jinja
