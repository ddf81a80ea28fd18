// Random numbers of the device: torch's CPU algorithms, with a generator of its own.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include "common.h"

namespace simulated_cuda {

inline std::mutex generator_lock;  // one operation at a time uses the generator

inline at::Generator& device_generator() {
  static at::Generator generator = [] {
    auto made = at::detail::createCPUGenerator();
    made.set_state(at::detail::getDefaultCPUGenerator().get_state());  // torch starts both with the same seed
    return made;
  }();
  return generator;
}

// Makes the generator of the host that of the device, for operations that don't take a generator.
class UseDeviceGenerator {
 public:
  UseDeviceGenerator() : host_state_(host_.get_state()) { host_.set_state(device_generator().get_state()); }
  ~UseDeviceGenerator() {
    device_generator().set_state(host_.get_state());
    host_.set_state(host_state_);
  }

 private:
  at::Generator host_ = at::detail::getDefaultCPUGenerator();
  Tensor host_state_;
};

// Calls an operation that draws random numbers.
inline void call_random(const c10::OperatorHandle& op, Stack& stack) {
  std::lock_guard<std::mutex> lock(generator_lock);
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    if (stack[i].isNone()) stack[i] = device_generator();
    op.callBoxed(stack);
    return;
  }
  UseDeviceGenerator use;
  op.callBoxed(stack);
}

inline Tensor generator_state() {
  std::lock_guard<std::mutex> lock(generator_lock);
  return device_generator().get_state();
}

inline void set_generator_state(const Tensor& state) {
  std::lock_guard<std::mutex> lock(generator_lock);
  device_generator().set_state(state);
}

}  // namespace simulated_cuda
