#include "text/template/jinja/print.h"

#include <wctype.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "text/template/jinja/unicode.h"

namespace troupe::jinja {
namespace {

void append_escape(std::string& out, const char* format, unsigned point) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), format, point);
  out += buffer;
}

// Writes containers and scalars into `out_` and notes whether any string was untrusted.
class ValueWriter {
 public:
  explicit ValueWriter(Budget& budget) : budget_(budget) {}

  Text finish() && {
    budget_.made(static_cast<std::int64_t>(out_.size()));
    return Text(std::move(out_), trusted_);
  }

 protected:
  // Called for each element. Strings are paid for separately, so the output cannot grow much beyond what is
  // checked here.
  void pay(std::size_t bytes = 16) {
    budget_.step();
    budget_.made(static_cast<std::int64_t>(bytes));
  }

  Budget& budget_;
  std::string out_;
  bool trusted_ = true;
};

class ReprWriter : public ValueWriter {
 public:
  using ValueWriter::ValueWriter;

  void value(const Value& v) {
    pay();
    if (const Text* text = v.text()) return string(*text);
    if (const List* list = v.list()) {
      out_ += list->tuple ? '(' : '[';
      for (std::size_t i = 0; i < list->items.size(); ++i) {
        if (i != 0) out_ += ", ";
        value(list->items[i]);
      }
      if (list->tuple && list->items.size() == 1) out_ += ',';
      out_ += list->tuple ? ')' : ']';
    } else if (const Dict* dict = v.dict()) {
      out_ += '{';
      for (std::size_t i = 0; i < dict->items.size(); ++i) {
        if (i != 0) out_ += ", ";
        value(dict->items[i].first);
        out_ += ": ";
        value(dict->items[i].second);
      }
      out_ += '}';
    } else if (const double* d = v.get<double>()) {
      out_ += float_repr(*d);
    } else if (const std::int64_t* i = v.get<std::int64_t>()) {
      out_ += std::to_string(*i);
    } else if (const bool* b = v.get<bool>()) {
      out_ += *b ? "True" : "False";
    } else if (v.is_none()) {
      out_ += "None";
    } else if (v.is_undefined()) {
      out_ += "Undefined";
    } else {
      out_ += "<" + std::string(v.type_name()) + ">";
    }
  }

 private:
  void string(const Text& text) {
    trusted_ = trusted_ && text.trusted();
    pay(text.size());
    budget_.transform(text.size());
    const std::string_view view = text.view();
    const bool single = view.find('\'') == view.npos || view.find('"') != view.npos;
    const char quote = single ? '\'' : '"';
    out_ += quote;
    for (std::size_t at = 0; at < view.size();) {
      const utf8::Step step = utf8::decode(view, at);
      character(step.point, view.substr(at, step.bytes), quote);
      at += step.bytes;
    }
    out_ += quote;
  }

  void character(char32_t point, std::string_view bytes, char quote) {
    if (point == static_cast<unsigned char>(quote) || point == '\\') {
      out_ += '\\';
      out_ += bytes;
    } else if (point == '\n' || point == '\r' || point == '\t') {
      out_ += point == '\n' ? "\\n" : point == '\r' ? "\\r" : "\\t";
    } else if (unicode::is_printable(point)) {
      out_ += bytes;
    } else {
      append_escape(out_, point < 0x100 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x", point);
    }
  }
};

class JsonWriter : public ValueWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : ValueWriter(budget), style_(style) {}

  void value(const Value& v) {
    pay();
    if (const Text* text = v.text()) return string(*text);
    if (const List* list = v.list()) return array(list->items);
    if (const Dict* dict = v.dict()) return object(*dict);
    if (v.is_number() || v.is_none()) {
      out_ += scalar(v);
      return;
    }
    throw Error("Object of type " + std::string(v.type_name()) + " is not JSON serializable");
  }

 private:
  static std::string scalar(const Value& v) {
    if (v.is_none()) return "null";
    if (const bool* b = v.get<bool>()) return *b ? "true" : "false";
    if (const std::int64_t* i = v.get<std::int64_t>()) return std::to_string(*i);
    const double d = v.as_double();
    if (std::isnan(d)) return "NaN";
    return std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : float_repr(d);
  }

  void line() {
    if (!style_.pretty) return;
    pay(style_.indent.size() * static_cast<std::size_t>(level_));
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += style_.indent;
  }

  void array(const std::vector<Value>& items) {
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      line();
      value(items[i]);
    }
    --level_;
    if (!items.empty()) line();
    out_ += ']';
  }

  void object(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(a->first, b->first, budget_); });
    }
    out_ += '{';
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      line();
      key(items[i]->first);
      out_ += style_.key_separator;
      value(items[i]->second);
    }
    --level_;
    if (!items.empty()) line();
    out_ += '}';
  }

  void key(const Value& v) {
    if (const Text* text = v.text()) return string(*text);
    if (!v.is_number() && !v.is_none()) {
      throw Error("keys must be str, int, float, bool or None, not " + std::string(v.type_name()));
    }
    out_ += '"' + scalar(v) + '"';
  }

  void string(const Text& text) {
    trusted_ = trusted_ && text.trusted();
    pay(text.size());
    budget_.transform(text.size());
    const std::string_view view = text.view();
    out_ += '"';
    for (std::size_t at = 0; at < view.size();) {
      const utf8::Step step = utf8::decode(view, at);
      character(step.point, view.substr(at, step.bytes));
      at += step.bytes;
    }
    out_ += '"';
  }

  void character(char32_t point, std::string_view bytes) {
    static constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kNames = "\"\\nrtfb";
    const std::size_t named = point < 0x80 ? kNamed.find(static_cast<char>(point)) : kNamed.npos;
    if (named != kNamed.npos) {
      out_ += '\\';
      out_ += kNames[named];
    } else if (point < 0x20 || (style_.ensure_ascii && point >= 0x7F && point < 0x10000)) {
      append_escape(out_, "\\u%04x", point);
    } else if (style_.ensure_ascii && point >= 0x10000) {
      append_escape(out_, "\\u%04x", 0xD800 + ((point - 0x10000) >> 10));
      append_escape(out_, "\\u%04x", 0xDC00 + ((point - 0x10000) & 0x3FF));
    } else {
      out_ += bytes;
    }
  }

  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

Text to_text(const Value& value, Budget& budget) {
  if (const Text* text = value.text()) {
    budget.touch(text->size());
    return *text;
  }
  if (value.is_undefined()) return {};
  ReprWriter writer(budget);
  writer.value(value);
  return std::move(writer).finish();
}

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.value(value);
  return std::move(writer).finish();
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const double magnitude = std::fabs(value);
  // Python switches to an exponent below 1e-4 and from 1e16 on.
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  std::string out(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value, format).ptr);
  if (!scientific && out.find('.') == out.npos) out += ".0";
  return out;
}

}  // namespace troupe::jinja
