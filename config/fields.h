#pragma once
// The one list of flags. To add a setting: a member in options.h, a row in fields.cpp, and
// docs/options.md written anew (`troupe serve --help=markdown > docs/options.md`). A flag that nothing reads
// has no member: its row is in fields_unread.cpp or fields_cluster.cpp and gives `unread_default` instead of
// `slot`.
#include <vector>

#include "config/field.h"
#include "config/options.h"

namespace troupe::config {

/// Every setting, in the order of --help, pointing into `options`; Options::unread gets the values that it
/// lacks.
std::vector<Field> fields(Options& options);

std::vector<Field> http_fields(HttpOptions& options);
std::vector<Field> limit_fields(LimitOptions& options);
std::vector<Field> batch_fields(BatchOptions& options);
std::vector<Field> scheduler_fields(SchedulerOptions& options);
std::vector<Field> quantization_fields(QuantizationOptions& options);
std::vector<Field> media_fields(MediaOptions& options);
std::vector<Field> speculation_fields(SpeculationOptions& options);
std::vector<Field> split_fields(SplitOptions& options);
std::vector<Field> remote_fields(RemoteOptions& options);

/// Flags that nothing reads, of one server, and of several devices or servers. Without slots.
std::vector<Field> unread_fields();
std::vector<Field> cluster_fields();

}  // namespace troupe::config
