// Storages of the device, as FSDP and `torch.save` use them. A CPU build of torch has no such functions for CUDA.
#include <torch/csrc/DynamicTypes.h>
#include <torch/extension.h>
#include <torch/library.h>

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

// Torch copies storages as tensors that it sets to them.
at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(0);
  tensor->set_sizes_contiguous({elements});
  return self;
}
at::Tensor& set_view_of_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(offset.expect_int());
  if (strides.empty()) tensor->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  else tensor->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
  return self;
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_view_of_storage);
}
}  // namespace

namespace simulated_cuda {
void define_storage(py::module& m) { m.def("resize_storage", &resize_storage); }
}  // namespace simulated_cuda
