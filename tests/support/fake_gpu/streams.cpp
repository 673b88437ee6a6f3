// SPDX-License-Identifier: Apache-2.0
// Streams, events and captured graphs. Work is done as soon as it is given, so that every query
// says so; synchronisations are counted.
#include "state.h"

using fake_gpu::capture;

extern "C" {

cudaError_t cudaDeviceSynchronize() {
  return fake_gpu::wait("cudaDeviceSynchronize");
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = fake_gpu::new_handle<cudaStream_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return fake_gpu::check_unsafe("cudaStreamQuery");
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return fake_gpu::wait("cudaStreamSynchronize");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard guard(fake_gpu::lock());
  // A stream that waits for one of a capture joins it.
  if (capture().active && capture().events.count(event) > 0) capture().streams.insert(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data,
                                  unsigned) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fake_gpu::capture_mode());
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      fake_gpu::is_captured(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard guard(fake_gpu::lock());
  if (capture().active || stream == nullptr) {
    return fake_gpu::refuse(cudaErrorIllegalState, "capture within another or of stream 0");
  }
  capture() = {.active = true, .streams = {stream}, .events = {}, .nodes = 0};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const std::lock_guard guard(fake_gpu::lock());
  capture().active = false;
  *graph = fake_gpu::new_handle<cudaGraph_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  if (status != nullptr) cudaStreamIsCapturing(stream, status);
  if (id != nullptr) *id = 1;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = capture().nodes;  // Those of the capture that ended last.
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t* count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t,
                                          unsigned long long) {
  *executable = fake_gpu::new_handle<cudaGraphExec_t>();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  fake_gpu::count(&FakeGpuCounts::replays, "cudaGraphLaunch");
  return fake_gpu::enqueue(stream, "cudaGraphLaunch");
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = fake_gpu::new_handle<cudaEvent_t>();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard guard(fake_gpu::lock());
  capture().events.erase(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return fake_gpu::check_unsafe("cudaEventQuery");
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard guard(fake_gpu::lock());
  if (fake_gpu::is_captured(stream)) {
    capture().events.insert(event);
  } else {
    capture().events.erase(event);
  }
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return fake_gpu::wait("cudaEventSynchronize");
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

}  // extern "C"
