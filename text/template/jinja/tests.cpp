// The tests: what may follow "is".
#include <algorithm>
#include <iterator>

#include "text/template/jinja/arguments.h"
#include "text/template/jinja/ast.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/rendering.h"
#include "text/template/jinja/unicode.h"

namespace troupe::jinja {
namespace {

bool is_defined(Rendering&, const Value& v, const PassedArguments&) { return !v.is_undefined(); }
bool is_undefined(Rendering&, const Value& v, const PassedArguments&) { return v.is_undefined(); }
bool is_none(Rendering&, const Value& v, const PassedArguments&) { return v.is_none(); }
bool is_boolean(Rendering&, const Value& v, const PassedArguments&) { return v.get<bool>() != nullptr; }
bool is_integer(Rendering&, const Value& v, const PassedArguments&) {
  return v.get<std::int64_t>() != nullptr;
}
bool is_float(Rendering&, const Value& v, const PassedArguments&) { return v.get<double>() != nullptr; }
bool is_number(Rendering&, const Value& v, const PassedArguments&) { return v.is_number(); }
bool is_string(Rendering&, const Value& v, const PassedArguments&) { return v.text() != nullptr; }
bool is_mapping(Rendering&, const Value& v, const PassedArguments&) { return v.dict() != nullptr; }
bool is_true(Rendering&, const Value& v, const PassedArguments&) { return v.get<bool>() && *v.get<bool>(); }
bool is_false(Rendering&, const Value& v, const PassedArguments&) { return v.get<bool>() && !*v.get<bool>(); }

// Jinja tests for the method __call__, which undefined has too, although calling it fails.
bool is_callable(Rendering&, const Value& v, const PassedArguments&) {
  return v.is_undefined() || (v.object() && v.object()->callable());
}
bool is_sequence(Rendering&, const Value& v, const PassedArguments&) {
  return v.list() || v.dict() || v.text() || v.is_undefined();
}

std::int64_t integer(const Value& value) {
  const auto [number, is_int] = value.as_int();
  if (!is_int) throw Error("the test wants an integer, got '" + std::string(value.type_name()) + "'");
  return number;
}

bool is_odd(Rendering&, const Value& v, const PassedArguments&) { return integer(v) % 2 != 0; }
bool is_even(Rendering&, const Value& v, const PassedArguments&) { return integer(v) % 2 == 0; }

bool is_divisible_by(Rendering&, const Value& v, const PassedArguments& arguments) {
  const MatchedArguments parameters("divisibleby", arguments, {"num"});
  const std::int64_t divisor = integer(parameters.required(0));
  if (divisor == 0) throw Error("division by zero");
  return divisor == -1 || integer(v) % divisor == 0;
}

bool is_same_as(Rendering& rendering, const Value& v, const PassedArguments& arguments) {
  return same(v, MatchedArguments("sameas", arguments, {"other"}).required(0), rendering.budget);
}

template <CompareOp kOp>
bool compares(Rendering& rendering, const Value& v, const PassedArguments& arguments) {
  return compare(rendering, kOp, v, MatchedArguments("a comparison", arguments, {"other"}).required(0));
}

bool is_lower(Rendering& rendering, const Value& v, const PassedArguments&) {
  return v.text() && call(rendering, attribute(rendering, v, "islower"), {}).truthy();
}
bool is_upper(Rendering& rendering, const Value& v, const PassedArguments&) {
  return v.text() && call(rendering, attribute(rendering, v, "isupper"), {}).truthy();
}

template <class Table>
bool names_one(const Value& v, Table find) {
  return v.text() && find(v.text()->view()) != nullptr;
}
bool is_filter(Rendering&, const Value& v, const PassedArguments&) { return names_one(v, find_filter); }
bool is_test(Rendering&, const Value& v, const PassedArguments&) { return names_one(v, find_test); }

struct NamedTest {
  std::string_view name;
  Test test;
};
constexpr NamedTest kTests[] = {
    {"!=", compares<CompareOp::not_equal>},
    {"<", compares<CompareOp::less>},
    {"<=", compares<CompareOp::less_equal>},
    {"==", compares<CompareOp::equal>},
    {">", compares<CompareOp::greater>},
    {">=", compares<CompareOp::greater_equal>},
    {"boolean", is_boolean},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisible_by},
    {"eq", compares<CompareOp::equal>},
    {"equalto", compares<CompareOp::equal>},
    {"even", is_even},
    {"false", is_false},
    {"filter", is_filter},
    {"float", is_float},
    {"ge", compares<CompareOp::greater_equal>},
    {"greaterthan", compares<CompareOp::greater>},
    {"gt", compares<CompareOp::greater>},
    {"in", compares<CompareOp::in>},
    {"integer", is_integer},
    {"iterable", is_sequence},
    {"le", compares<CompareOp::less_equal>},
    {"lessthan", compares<CompareOp::less>},
    {"lower", is_lower},
    {"lt", compares<CompareOp::less>},
    {"mapping", is_mapping},
    {"ne", compares<CompareOp::not_equal>},
    {"none", is_none},
    {"number", is_number},
    {"odd", is_odd},
    {"sameas", is_same_as},
    {"sequence", is_sequence},
    {"string", is_string},
    {"test", is_test},
    {"true", is_true},
    {"undefined", is_undefined},
    {"upper", is_upper},
};

}  // namespace

Test find_test(std::string_view name) {
  const NamedTest* found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const NamedTest& t) { return t.name == name; });
  return found == std::end(kTests) ? nullptr : found->test;
}

}  // namespace troupe::jinja
