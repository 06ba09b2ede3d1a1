// The functions a template may call by name.
#include <time.h>

#include <algorithm>
#include <iterator>

#include "text/template/jinja/arguments.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/rendering.h"

namespace troupe::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as Jinja's sandbox
constexpr std::size_t kMaxDateBytes = 512;

class Namespace : public Object {
 public:
  explicit Namespace(NamespaceData& data) : data_(data) {}
  const char* type_name() const override { return "Namespace"; }
  Value attribute(Rendering& rendering, std::string_view name) const override {
    if (const Value* value = data_.attributes.find(name)) return *value;
    return Object::attribute(rendering, name);
  }
  NamespaceData& data() const { return data_; }

 private:
  NamespaceData& data_;
};

// dict(mapping, name=value …)
Dict dict_of(Rendering& rendering, const char* function, const PassedArguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1)
    throw Error(std::string(function) + "() takes at most 1 positional argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional.front();
    if (from.dict()) {
      dict = *from.dict();
    } else {
      for (const Value& pair : items_of(rendering, from)) {
        const std::vector<Value> parts = items_of(rendering, pair);
        if (parts.size() != 2) throw Error(std::string(function) + "() wants pairs");
        dict.set(parts[0], parts[1], rendering.budget);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(Value::trusted(name), value, rendering.budget);
  return dict;
}

Value make_dict(Rendering& rendering, const PassedArguments& arguments) {
  return rendering.make(dict_of(rendering, "dict", arguments));
}

Value make_namespace(Rendering& rendering, const PassedArguments& arguments) {
  Dict attributes = dict_of(rendering, "namespace", arguments);
  rendering.budget.made(256);
  NamespaceData& data = rendering.new_namespace();
  data.attributes = std::move(attributes);
  return Value(std::make_shared<const Namespace>(data));
}

Value range(Rendering& rendering, const PassedArguments& arguments) {
  const MatchedArguments parameters("range", arguments, {"start", "stop", "step"});
  const bool one = !parameters.get(1);
  parameters.required(0);
  const std::int64_t start = one ? 0 : parameters.integer(0, 0);
  const std::int64_t stop = one ? parameters.integer(0, 0) : parameters.integer(1, 0);
  const std::int64_t step = parameters.integer(2, 1);
  if (step == 0) throw Error("range() step must not be zero");
  const double count = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (count > static_cast<double>(kMaxRange)) throw LimitError("range() is longer than 100000");
  std::vector<Value> out;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    rendering.budget.step();
    out.push_back(Value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return rendering.make(std::move(out));
}

Value raise_exception(Rendering& rendering, const PassedArguments& arguments) {
  const MatchedArguments parameters("raise_exception", arguments, {"message"});
  throw RaisedError(std::string(to_text(parameters.required(0), rendering.budget).view().substr(0, 1000)));
}

Value strftime_now(Rendering& rendering, const PassedArguments& arguments) {
  const MatchedArguments parameters("strftime_now", arguments, {"format"});
  const Text& format = parameters.text(0);
  if (format.size() > 128) throw Error("strftime_now() takes a format of at most 128 bytes");
  const time_t now =
      rendering.limits().now_unix_s ? static_cast<time_t>(*rendering.limits().now_unix_s) : time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  char buffer[kMaxDateBytes];
  const std::size_t size = strftime(buffer, sizeof(buffer), std::string(format.view()).c_str(), &parts);
  return rendering.make(Text(std::string(buffer, size), format.trusted()));
}

struct NamedFunction {
  std::string_view name;
  Function function;
};
constexpr NamedFunction kFunctions[] = {
    {"dict", make_dict}, {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"range", range},    {"strftime_now", strftime_now},
};

}  // namespace

NamespaceData* namespace_data(const Value& value) {
  const auto* found = dynamic_cast<const Namespace*>(value.object());
  return found ? &found->data() : nullptr;
}

Function find_function(std::string_view name) {
  const NamedFunction* found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                            [&](const NamedFunction& f) { return f.name == name; });
  return found == std::end(kFunctions) ? nullptr : found->function;
}

}  // namespace troupe::jinja
