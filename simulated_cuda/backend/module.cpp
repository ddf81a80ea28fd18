// A CUDA device made of host memory. This file makes it a module of Python, which `_device.py` installs into torch.
#include <pthread.h>

#include "capture.h"
#include "copies.h"
#include "hooks.h"
#include "memory.h"
#include "operations.h"
#include "order.h"
#include "random.h"
#include "replay.h"
#include "waiting.h"

namespace simulated_cuda {
void define_process_groups(py::module&);  // of process_group.cpp
void define_storage(py::module&);         // of storage.cpp

namespace {

// A child process has other threads, and the lock in the state that it was left in.
void survive_fork() {
  pthread_atfork([] { state_lock.lock(); }, [] { state_lock.unlock(); },
                 [] { new (&state_lock) std::recursive_mutex; });
}

struct Event {
  Clock clock;
};

py::list describe_segments() {
  Lock lock(state_lock);
  py::list found;
  for (const auto& [_, segment] : segments.all()) {
    py::list pieces;
    for (const auto& [_, piece] : segment.pieces) {
      pieces.append(py::make_tuple(reinterpret_cast<int64_t>(piece.address), piece.size, piece.is_used));
    }
    const auto& shelf = segment.shelf;
    found.append(py::make_tuple(shelf.pool, shelf.stream, shelf.is_small, segment.size, pieces));
  }
  return found;
}

py::dict describe_memory() {
  Lock lock(state_lock);
  py::dict found;
  found["allocated"] = segments.allocated.now;
  found["peak_allocated"] = segments.allocated.peak;
  found["reserved"] = segments.reserved.now;
  found["peak_reserved"] = segments.reserved.peak;
  found["out_of_memory_errors"] = segments.out_of_memory_errors;
  found["retries"] = segments.retries;
  return found;
}

std::vector<std::string> operations_of(int64_t graph) {
  std::vector<std::string> names;
  for (const auto& each : find_graph(graph)->operations) names.push_back(toString(each.op.schema().operator_name()));
  return names;
}

void define_streams(py::module& module) {
  using without_interpreter = py::call_guard<py::gil_scoped_release>;
  py::class_<Event>(module, "Event");
  module.def("current_stream", [] { return current_stream; });
  module.def("set_stream", [](int64_t stream) { return std::exchange(current_stream, stream); });
  module.def("record_event", [](int64_t stream) { return Event{clock_of(stream)}; });
  module.def("stream_waits_for", [](int64_t stream, const Event& event) {
    Lock lock(state_lock);
    stream_clocks[stream].join(event.clock);
  });
  module.def("is_busy", [](const Event& event) { return is_busy(event.clock); });
  module.def("has_pending_copies", [](const Event& event) { return has_pending_copies(event.clock); });
  module.def("host_waits_for", [](const Event& event) { wait_for(event.clock); }, without_interpreter());
  module.def("wait_for_device", &wait_for_device, without_interpreter());
  module.def("synchronize", &synchronize);
  module.def("sleep_on_stream", &sleep_on_stream);
  module.def("record_stream", &record_stream);
  module.def("take_races", &take_races);
  module.def("set_sync_debug_mode", [](int64_t mode) { sync_debug_mode = mode; });
  module.def("sync_debug_mode", [] { return sync_debug_mode.load(); });
  module.def("synchronizations", [] { return synchronizations.load(); });
}

void define_graphs(py::module& module) {
  module.def("is_capturing", &is_capturing);
  module.def("raise_if_capturing", &raise_if_capturing);
  module.def("raise_in_capture", &raise_in_capture);
  module.def("begin_capture", &begin_capture);
  module.def("end_capture", &end_capture);
  module.def("replay", &replay, py::call_guard<py::gil_scoped_release>());
  module.def("delete_graph", &delete_graph, py::call_guard<py::gil_scoped_release>());
  module.def("operations_of", &operations_of);
  module.def("operation_counts", [] {
    Lock lock(state_lock);
    return operation_counts;
  });
  module.def("live_graphs", [] {
    Lock lock(state_lock);
    return graphs.size();
  });
}

void define_memory(py::module& module) {
  module.attr("TOTAL_MEMORY") = TOTAL_MEMORY;
  module.def("pinned_copy", &pinned_copy);
  module.def("is_pinned", &is_pinned);
  module.def("set_pool", [](int64_t pool) { return std::exchange(current_pool, pool); });
  module.def("add_pool_user", [](int64_t pool) {
    Lock lock(state_lock);
    segments.add_pool_user(pool);
  });
  module.def("remove_pool_user", [](int64_t pool) {
    Lock lock(state_lock);
    segments.remove_pool_user(pool);
  });
  module.def("memory", &describe_memory);
  module.def("segments", &describe_segments);
  module.def("empty_cache", [] {
    Lock lock(state_lock);
    release_deferred();
    segments.empty_cache();
  });
  module.def("reset_peaks", [] {
    Lock lock(state_lock);
    segments.allocated.peak = segments.allocated.now;
    segments.reserved.peak = segments.reserved.now;
  });
  module.def("set_allocated_limit", [](size_t bytes) {
    Lock lock(state_lock);
    segments.allocated_limit = bytes;
  });
  module.def("set_reserved_limit", [](size_t bytes) {
    Lock lock(state_lock);
    segments.reserved_limit = bytes;
  });
}

void define_random_numbers(py::module& module) {
  module.def("generator_state", &generator_state);
  module.def("set_generator_state", &set_generator_state);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  set_hooks();
  register_operations_of(c10::DispatchKey::CPU, c10::DispatchKey::CUDA);
  register_operations_of(c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCUDA);
  survive_fork();
  define_streams(module);
  define_graphs(module);
  define_memory(module);
  define_random_numbers(module);
  define_process_groups(module);
  define_storage(module);
}

}  // namespace simulated_cuda
