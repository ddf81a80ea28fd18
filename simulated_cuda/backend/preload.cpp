// Preloaded (LD_PRELOAD): torch built without CUDA decides at compile time that there is no accelerator, and asks for
// its hooks before an extension can be loaded. These functions take the place of torch's.
#include <c10/core/DeviceType.h>
#include <dlfcn.h>

#include <optional>

static const void* hooks = nullptr;  // an at::CUDAHooksInterface

extern "C" __attribute__((visibility("default"))) void simulated_cuda_set_hooks(const void* given) { hooks = given; }

namespace at {

struct CUDAHooksInterface;

namespace accelerator {

__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(bool) {
  return c10::DeviceType::CUDA;
}

}  // namespace accelerator

namespace detail {

__attribute__((visibility("default"))) const CUDAHooksInterface& getCUDAHooks() {
  if (hooks) return *static_cast<const CUDAHooksInterface*>(hooks);
  using Function = const CUDAHooksInterface& (*)();
  static auto torchs = reinterpret_cast<Function>(
      dlsym(dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY), "_ZN2at6detail12getCUDAHooksEv"));
  return torchs();
}

}  // namespace detail
}  // namespace at
