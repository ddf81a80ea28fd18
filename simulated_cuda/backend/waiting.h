// What the host has to wait for: copies to pinned memory arrive, and streams sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "capture.h"
#include "order.h"

namespace simulated_cuda {

using Time = std::chrono::steady_clock::time_point;
constexpr double CYCLES_PER_SECOND = 2e9;  // of torch.cuda._sleep

// A copy to the host that has not arrived, or a sleep of a stream.
struct Arrival {
  int64_t stream;
  int64_t number;        // of the operation
  Tensor target, value;  // undefined for a sleep
  Time not_before{};
};

// Pinned memory that a copy to the device reads: it must not change before the host knows that the copy is done.
struct Upload {
  int64_t stream;
  int64_t number;
  Tensor source, value;
};

inline auto& arrivals = forever<std::deque<Arrival>>();
inline auto& uploads = forever<std::vector<Upload>>();
inline std::atomic<int64_t> sync_debug_mode = 0;  // 0: allow, 1: warn, 2: raise
inline std::atomic<int64_t> synchronizations = 0;

inline bool has_same_bytes(const Tensor& one, const Tensor& other) {
  HostCall call;
  auto x = one.contiguous(), y = other.contiguous();
  return x.nbytes() == y.nbytes() && (x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

inline bool has_pending_copies(const Clock& clock) {
  Lock lock(state_lock);
  return std::any_of(arrivals.begin(), arrivals.end(), [&](const Arrival& each) {
    return each.target.defined() && clock.includes(each.stream, each.number);
  });
}

// When the work in this clock is done; in the past if nothing of it sleeps.
inline Time end_of_sleep(const Clock& clock) {
  Lock lock(state_lock);
  Time end{};
  for (const auto& each : arrivals) {
    if (clock.includes(each.stream, each.number)) end = std::max(end, each.not_before);
  }
  return end;
}

inline bool is_busy(const Clock& clock) { return end_of_sleep(clock) > std::chrono::steady_clock::now(); }

inline void sleep_until(Time end) {
  if (end <= std::chrono::steady_clock::now()) return;
  std::optional<py::gil_scoped_release> without_interpreter;
  if (PyGILState_Check()) without_interpreter.emplace();
  std::this_thread::sleep_until(end);
}

// The host waits until all work in this clock is done.
inline void wait_for(const Clock& clock) {
  sleep_until(end_of_sleep(clock));
  std::vector<Arrival> arrived;  // destroyed after the lock is released: tensors may belong to Python
  std::vector<Upload> done;
  Lock lock(state_lock);
  host_clock.join(clock);
  std::deque<Arrival> later;
  for (auto& each : arrivals) {
    if (!host_clock.includes(each.stream, each.number)) {
      later.push_back(std::move(each));
      continue;
    }
    if (each.target.defined()) {
      HostCall call;
      each.target.copy_(each.value);
    }
    arrived.push_back(std::move(each));
  }
  arrivals.swap(later);
  std::vector<Upload> rest;
  for (auto& each : uploads) {
    if (!host_clock.includes(each.stream, each.number)) {
      rest.push_back(std::move(each));
      continue;
    }
    if (!has_same_bytes(each.source, each.value)) {
      report_race("pinned memory was overwritten before its copy to the device on stream " +
                  std::to_string(each.stream) + " was known to be done");
    }
    done.push_back(std::move(each));
  }
  uploads.swap(rest);
}

inline Clock clock_of(int64_t stream) {
  Lock lock(state_lock);
  return stream_clocks[stream];
}

inline void wait_for_stream(int64_t stream) { wait_for(clock_of(stream)); }

inline void wait_for_device() {
  Clock all;
  {
    Lock lock(state_lock);
    for (const auto& [_, clock] : stream_clocks) all.join(clock);
  }
  wait_for(all);
}

// The host synchronizes with the current stream.
inline void synchronize(const std::string& what) {
  raise_if_capturing(what);
  const std::string text = "called a synchronizing CUDA operation: " + what;
  if (sync_debug_mode == 2) throw std::runtime_error(text);
  if (sync_debug_mode == 1) TORCH_WARN(text);
  ++synchronizations;
  wait_for_stream(current_stream);
}

// The current stream does nothing for a while (`torch.cuda._sleep`).
inline void sleep_on_stream(int64_t cycles) {
  const auto duration = std::chrono::duration<double>(cycles / CYCLES_PER_SECOND);
  Lock lock(state_lock);
  const auto number = start_operation(current_stream);
  auto start = std::max(end_of_sleep(stream_clocks[current_stream]), std::chrono::steady_clock::now());
  start += std::chrono::duration_cast<std::chrono::steady_clock::duration>(duration);
  arrivals.push_back(Arrival{current_stream, number, Tensor(), Tensor(), start});
}

}  // namespace simulated_cuda
