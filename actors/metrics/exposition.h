#pragma once
// The three kinds of Prometheus series that the server publishes, and their text form (exposition
// format 0.0.4). Plain values, owned and used by one actor.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::metrics {

/// Cumulative histogram with fixed upper bounds (an implicit +Inf follows the last).
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

  void observe(double value);

  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  std::span<const double> bounds() const { return bounds_; }
  /// Observations in bucket i alone, not cumulative.
  std::uint64_t bucket(std::size_t i) const { return counts_[i]; }

  /// Adds observations that were counted elsewhere: one count a bucket, the last beyond all bounds.
  void add(std::span<const std::uint32_t> counts, double sum);

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

/// Appends series to a text. `labels` is the inside of the braces, already escaped, or empty; `common`,
/// likewise, are labels that every series has.
class Exposition {
 public:
  explicit Exposition(std::string common = {}) : common_(std::move(common)) {}

  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value, std::string_view labels = {});
  void histogram(std::string_view name, std::string_view help, const Histogram& values);

  /// Heading for series of one name with different labels, which follow by sample().
  void heading(std::string_view name, std::string_view help, std::string_view type);
  void sample(std::string_view name, std::string_view labels, double value);

  std::string take() { return std::move(text_); }

 private:
  std::string common_;
  std::string text_;
};

/// A label value with backslash, quote and newline escaped.
std::string escape_label(std::string_view value);

}  // namespace troupe::metrics
