#pragma once
// Priority of threads whose work is long and can wait.

namespace troupe {

/// Lowers the priority of the calling thread: others of the machine that have work run first. Nothing raises
/// it again.
void lower_thread_priority();

}  // namespace troupe
