// CUDA graphs: what they hold, and the capture that is under way. `replay.h` runs them.
#pragma once

#include "common.h"
#include "random.h"

namespace simulated_cuda {

enum class Kind {
  operation,
  copy_to_host,    // to pinned memory: arrives when the host waits
  copy_to_device,  // from pinned memory, or on the device
};

struct RecordedOperation {
  c10::OperatorHandle op;
  Stack inputs;                 // tensors are aliases on the host, of the memory of the device
  std::vector<Tensor> results;  // aliases of what the operation has allocated; undefined for views and arguments
  bool is_random = false;
  Kind kind = Kind::operation;
};

struct Graph {
  int64_t id;
  int64_t pool;
  int64_t stream;  // which is captured, by whatever thread uses it
  Tensor generator_state;  // of before the capture, which draws nothing
  std::vector<RecordedOperation> operations;
  bool is_invalid = false;
};

inline auto& capture = forever<std::shared_ptr<Graph>>();                     // the one under way
inline auto& graphs = forever<std::map<int64_t, std::shared_ptr<Graph>>>();  // those that are complete

// The capture of the current stream.
inline std::shared_ptr<Graph> current_capture() {
  Lock lock(state_lock);
  return capture && capture->stream == current_stream ? capture : nullptr;
}

inline bool is_capturing() { return current_capture() != nullptr; }

[[noreturn]] inline void raise_in_capture(const std::string& what) {
  if (auto graph = current_capture()) graph->is_invalid = true;
  throw std::runtime_error("CUDA error: operation not permitted when stream is capturing (" + what + ")");
}

inline void raise_if_capturing(const std::string& what) {
  if (is_capturing()) raise_in_capture(what);
}

}  // namespace simulated_cuda
