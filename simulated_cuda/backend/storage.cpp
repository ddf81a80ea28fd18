// Storages that are resized, as FSDP does. A CPU build of torch has no such function for CUDA.
#include <torch/csrc/DynamicTypes.h>
#include <torch/extension.h>

namespace {
// FSDP frees the gathered parameters by resizing their storage to nothing, and allocates them again.
void resize_storage(const py::object& given, size_t bytes) {
  c10::Storage storage = torch::createStorage(given.ptr());
  auto* allocator = storage.allocator();
  TORCH_CHECK(allocator != nullptr, "this storage can't be resized");
  const auto kept = std::min(bytes, storage.nbytes());
  auto data = allocator->allocate(bytes);
  if (kept) std::memcpy(data.get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}
}  // namespace

namespace simulated_cuda {
void define_storage(py::module& m) { m.def("resize_storage", &resize_storage); }
}  // namespace simulated_cuda
