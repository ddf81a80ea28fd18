// What torch asks a device for: the current stream, events, hooks.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"
#include "waiting.h"

namespace simulated_cuda {

// Streams and events of C++: autograd uses them.
struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, DEVICE, id); }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(SIDE_STREAM); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(SIDE_STREAM); }
  c10::Stream exchangeStream(c10::Stream other) const override {
    return stream(std::exchange(current_stream, other.id()));
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& other) const override { wait_for_stream(other.id()); }

  // An event is the clock of its stream.
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Clock*>(event); }
  void record(void** event, const c10::Stream& other, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Clock;
    *static_cast<Clock*>(*event) = clock_of(other.id());
  }
  void block(void* event, const c10::Stream& other) const override {
    Lock lock(state_lock);
    if (event) stream_clocks[other.id()].join(*static_cast<Clock*>(event));
  }
  bool queryEvent(void* event) const override {
    if (event) wait_for(*static_cast<Clock*>(event));
    return true;
  }
  void synchronizeEvent(void* event) const override { queryEvent(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& other) const override {
    Lock lock(state_lock);
    auto found = blocks.find(data.get());
    if (found != blocks.end()) found->second.uses.recorded_streams.insert(other.id());
  }

 private:
  static constexpr int64_t SIDE_STREAM = 7;  // one of those that torch.cuda.Stream() hands out
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  std::string showConfig() const override { return "simulated"; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  bool isPinnedPtr(const void* address) const override {
    Lock lock(state_lock);
    return pinned_addresses.count(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(c10::DeviceIndex) const override { wait_for_device(); }
};

C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard)

}  // namespace simulated_cuda

// Of preload.cpp, if it was preloaded.
extern "C" void simulated_cuda_set_hooks(const void*) __attribute__((weak));

namespace simulated_cuda {

inline void set_hooks() {
  if (simulated_cuda_set_hooks) simulated_cuda_set_hooks(static_cast<const at::CUDAHooksInterface*>(new Hooks));
}

}  // namespace simulated_cuda
