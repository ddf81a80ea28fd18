// What all parts share: the lock, what a thread has selected, and calls of torch's CPU kernels.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simulated_cuda {

using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

// State that lives until the process ends: tensors are freed when static variables are gone already.
template <class T>
T& forever() {
  return *new T;
}

inline const c10::Device DEVICE(c10::DeviceType::CUDA, 0);
inline const c10::Device HOST(c10::DeviceType::CPU);

// One lock for all state of the device. It is recursive: memory is freed while an operation holds it.
// Whoever holds it must not wait for the lock of Python's interpreter: its holder may wait for this one.
inline std::recursive_mutex state_lock;
using Lock = std::lock_guard<std::recursive_mutex>;

inline thread_local int64_t current_stream = 0;  // 0 is the default stream
inline thread_local int64_t current_pool = 0;    // where allocations go outside of a capture; 0 is the general pool

// Calls torch's CPU kernels: below autograd and autocast, which have seen the operation on the device already.
struct HostCall {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

inline void fill_with_garbage(void* address, size_t bytes) {
  std::memset(address, 0xff, bytes);  // NaN as a floating-point number, -1 as an integer
}

}  // namespace simulated_cuda
