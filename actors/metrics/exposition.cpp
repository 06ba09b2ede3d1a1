#include "actors/metrics/exposition.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace troupe::metrics {
namespace {

void append_number(std::string& out, double value) {
  if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
    return;
  }
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  char digits[64];
  const double size = std::abs(value);
  const bool plain =
      size == 0 || (size >= 1e-6 && size < 1e15);  // 0.0001 and 100000 rather than 1e-04 and 1e+05
  const auto format = plain ? std::chars_format::fixed : std::chars_format::general;
  const auto end = std::to_chars(digits, digits + sizeof digits, value, format);
  out.append(digits, end.ptr);
}

}  // namespace

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(at)];
  ++count_;
  sum_ += value;
}

void Histogram::add(std::span<const std::uint32_t> counts, double sum) {
  for (std::size_t i = 0; i < counts.size() && i < counts_.size(); ++i) {
    counts_[i] += counts[i];
    count_ += counts[i];
  }
  sum_ += sum;
}

void Exposition::heading(std::string_view name, std::string_view help, std::string_view type) {
  text_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name).append(" ");
  text_.append(type).append("\n");
}

void Exposition::sample(std::string_view name, std::string_view labels, double value) {
  text_.append(name);
  if (!labels.empty() || !common_.empty()) {
    text_.append("{")
        .append(common_)
        .append(labels.empty() || common_.empty() ? "" : ",")
        .append(labels)
        .append("}");
  }
  text_ += ' ';
  append_number(text_, value);
  text_ += '\n';
}

void Exposition::counter(std::string_view name, std::string_view help, double value) {
  heading(name, help, "counter");
  sample(name, {}, value);
}

void Exposition::gauge(std::string_view name, std::string_view help, double value, std::string_view labels) {
  heading(name, help, "gauge");
  sample(name, labels, value);
}

void Exposition::histogram(std::string_view name, std::string_view help, const Histogram& values) {
  heading(name, help, "histogram");
  const std::string bucket = std::string(name) + "_bucket";
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < values.bounds().size(); ++i) {
    below += values.bucket(i);
    std::string label = "le=\"";
    append_number(label, values.bounds()[i]);
    sample(bucket, label + "\"", static_cast<double>(below));
  }
  sample(bucket, "le=\"+Inf\"", static_cast<double>(values.count()));
  sample(std::string(name) + "_sum", {}, values.sum());
  sample(std::string(name) + "_count", {}, static_cast<double>(values.count()));
}

std::string escape_label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace troupe::metrics
