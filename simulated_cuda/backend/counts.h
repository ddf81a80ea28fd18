// How often each operation was called: tests see by it what a program does.
#pragma once

#include "common.h"

namespace simulated_cuda {

inline auto& operation_counts = forever<std::map<std::string, int64_t>>();

inline void count_operation(const std::string& name, bool is_captured) {
  Lock lock(state_lock);
  ++operation_counts[is_captured ? "captured " + name : name];
}

}  // namespace simulated_cuda
