// The extension module: thin, and trusting. Pointers come as integers; the Python side checks
// shapes, and keeps alive what it passes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include "peaks.hpp"
#include "program.hpp"
#include "sampling.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace treadle {
namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

template <class T>
std::vector<const T*> all_at(const std::vector<Address>& addresses) {
  std::vector<const T*> pointers;
  for (const Address address : addresses) pointers.push_back(at<const T>(address));
  return pointers;
}

// A backend with what Python asks of it directly.
struct Handle {
  Handle(const std::string& isa, int threads)
      : backend(make_backend(isa, threads)), sampler(backend->kernels) {}

  std::shared_ptr<Backend> backend;
  Sampler sampler;
};

// A part that continues the one before, in type and in memory, becomes one with it: one product
// instead of two.
void append_part(Matrix& matrix, Part part) {
  if (!matrix.parts.empty()) {
    Part& last = matrix.parts.back();
    part.column = last.column + last.n;
    if (part.type == last.type && last.n % kLanes == 0 &&
        part.data == last.data + last.panels * last.panel_bytes) {
      last.n += part.n;
      last.panels += part.panels;
      return;
    }
  }
  matrix.parts.push_back(part);
}

// Whether all weights are finite.
bool add_part(Matrix& matrix, Handle& handle, int type, Address from, int64_t n, Address to) {
  const nb::gil_scoped_release release;
  const Packed packed = handle.backend->with_pool([&](Pool& pool) {
    return pack_part(pool, static_cast<WeightType>(type), at<const uint8_t>(from), n, matrix.k,
                     at<uint8_t>(to));
  });
  append_part(matrix, packed.part);
  return packed.finite;
}

void bind_values(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", [](Matrix* self, int64_t k) { new (self) Matrix{k, {}}; }, "k"_a)
      .def("add_part", &add_part, "backend"_a, "type"_a, "data"_a, "n"_a, "to"_a);

  nb::class_<Buffer>(m, "Buffer")
      .def(
          "__init__",
          [](Buffer* self, bool token_rows, int64_t width, Address values, int64_t stride,
             Address records, bool keep_values) {
            new (self) Buffer{{at<float>(values), stride, at<uint8_t>(records), width, keep_values,
                               records != 0},
                              token_rows};
          },
          "token_rows"_a, "width"_a, "values"_a, "stride"_a, "records"_a, "keep_values"_a);

  nb::class_<KVPool>(m, "KVPool")
      .def(
          "__init__",
          [](KVPool* self, int type, int64_t layers, int64_t kv_heads, int64_t head_dim,
             int64_t block_size, int64_t blocks) {
            new (self) KVPool{nullptr,  static_cast<KVType>(type), layers, kv_heads, head_dim,
                              block_size, blocks};
          },
          "type"_a, "layers"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a, "blocks"_a)
      .def_prop_ro("bytes", &KVPool::bytes)
      .def("place", [](KVPool& self, Address data) { self.data = at<uint8_t>(data); });

  nb::class_<Rope>(m, "Rope").def(
      "__init__",
      [](Rope* self, Address cos, Address sin, int64_t positions, int64_t pairs,
         bool interleaved) {
        new (self) Rope{at<const float>(cos), at<const float>(sin), positions, pairs, interleaved};
      },
      "cos"_a, "sin"_a, "positions"_a, "pairs"_a, "interleaved"_a);

  nb::class_<Norm>(m, "Norm").def(
      "__init__",
      [](Norm* self, Address weight, Address bias, float eps) {
        new (self) Norm{at<const float>(weight), at<const float>(bias), eps};
      },
      "weight"_a, "bias"_a, "eps"_a);

  nb::class_<HeadNorms>(m, "HeadNorms")
      .def(
          "__init__",
          [](HeadNorms* self, Address q, Address k, int64_t q_span, int64_t k_span, float eps) {
            new (self) HeadNorms{at<const float>(q), at<const float>(k), q_span, k_span, eps};
          },
          "q"_a, "k"_a, "q_span"_a, "k_span"_a, "eps"_a);

  nb::class_<KVPlace>(m, "KVPlace")
      .def(
          "__init__",
          [](KVPlace* self, int64_t group, int64_t layer) {
            new (self) KVPlace{static_cast<size_t>(group), layer};
          },
          "group"_a, "layer"_a);

  nb::class_<Masking>(m, "Masking")
      .def(
          "__init__",
          [](Masking* self, float scale, int64_t window, float softcap) {
            new (self) Masking{scale, window, softcap};
          },
          "scale"_a, "window"_a, "softcap"_a);

  nb::class_<Routing>(m, "Routing")
      .def(
          "__init__",
          [](Routing* self, int64_t top_k, bool renormalise, int activation) {
            new (self) Routing{top_k, renormalise, static_cast<Activation>(activation)};
          },
          "top_k"_a, "renormalise"_a, "activation"_a);

  nb::class_<StepInputs>(m, "StepInputs")
      .def(
          "__init__",
          [](StepInputs* self, int64_t max_tokens, int64_t max_rows, int64_t max_logits,
             const std::vector<Address>& arrays, const std::vector<Address>& slots,
             const std::vector<Address>& tables, std::vector<int64_t> table_blocks) {
            const std::vector<const int32_t*> a = all_at<int32_t>(arrays);
            new (self) StepInputs{max_tokens,
                                  max_rows,
                                  max_logits,
                                  a.at(0),
                                  a.at(1),
                                  a.at(2),
                                  a.at(3),
                                  a.at(4),
                                  all_at<int32_t>(slots),
                                  all_at<int32_t>(tables),
                                  std::move(table_blocks)};
          },
          "max_tokens"_a, "max_rows"_a, "max_logits"_a, "arrays"_a, "slots"_a, "tables"_a, "table_blocks"_a);
}

void bind_profile(nb::module_& m) {
  nb::class_<OpTime>(m, "OpTime")
      .def_ro("label", &OpTime::label)
      .def_ro("kernel", &OpTime::kernel)
      .def_prop_ro("on_bytes", [](const OpTime& self) { return self.unit == Unit::kBytes; })
      .def_prop_ro("weight_bytes", [](const OpTime& self) { return self.cost.weight_bytes; })
      .def_prop_ro("kv_bytes", [](const OpTime& self) { return self.cost.kv_bytes; })
      .def_prop_ro("activation_bytes",
                   [](const OpTime& self) { return self.cost.activation_bytes; })
      .def_prop_ro("operations", [](const OpTime& self) { return self.cost.operations; })
      .def_ro("nanoseconds", &OpTime::nanoseconds);
}

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program")
      .def(
          "__init__",
          [](Program* self, Handle& handle, StepInputs inputs, std::vector<KVPool> pools) {
            new (self) Program(handle.backend, std::move(inputs), std::move(pools));
          },
          "backend"_a, "inputs"_a, "pools"_a)
      .def("label", &Program::label, "label"_a)
      .def("embed", &Program::embed, "table"_a, "out"_a, "scale"_a)
      .def("embed_positions", &Program::embed_positions, "table"_a, "out"_a)
      .def("rms_norm", &Program::rms_norm, "x"_a, "norm"_a, "out"_a, "accumulate"_a)
      .def("layer_norm", &Program::layer_norm, "x"_a, "norm"_a, "out"_a)
      .def(
          "linear",
          [](Program& self, const Buffer& x, const Matrix& matrix, const Buffer& out, Address bias,
             bool accumulate) {
            self.linear(x, matrix, out, at<const float>(bias), accumulate);
          },
          "x"_a, "matrix"_a, "out"_a, "bias"_a, "accumulate"_a)
      .def("rope_store", &Program::rope_store, "qkv"_a, "heads"_a, "rope"_a, "norms"_a, "place"_a)
      .def("attention", &Program::attention, "qkv"_a, "heads"_a, "place"_a, "out"_a, "masking"_a)
      .def(
          "gated",
          [](Program& self, const Buffer& gate_up, int activation, const Buffer& out) {
            self.gated(gate_up, static_cast<Activation>(activation), out);
          },
          "gate_up"_a, "activation"_a, "out"_a)
      .def(
          "activate",
          [](Program& self, const Buffer& x, int activation, const Buffer& out) {
            self.activate(x, static_cast<Activation>(activation), out);
          },
          "x"_a, "activation"_a, "out"_a)
      .def("copy", &Program::copy, "x"_a, "out"_a)
      .def("experts", &Program::experts, "x"_a, "router"_a, "gate_up"_a, "down"_a, "out"_a,
           "routing"_a)
      .def("select", &Program::select, "x"_a, "out"_a)
      .def(
          "head",
          [](Program& self, const Buffer& x, const Matrix& matrix, const Buffer& logits, float cap,
             Address likeliest) { self.head(x, matrix, logits, cap, at<int32_t>(likeliest)); },
          "x"_a, "matrix"_a, "logits"_a, "cap"_a, "likeliest"_a)
      .def("finish", &Program::finish)
      .def_prop_ro("bytes", &Program::bytes)
      .def(
          "run",
          [](Program& self, int64_t tokens, int64_t rows, int64_t logits, int64_t likeliest) {
            self.run({tokens, rows, logits, likeliest});
          },
          "tokens"_a, "rows"_a, "logits"_a, "likeliest"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "profile",
          [](Program& self, int64_t tokens, int64_t rows, int64_t logits, int64_t likeliest) {
            return self.profile({tokens, rows, logits, likeliest});
          },
          "tokens"_a, "rows"_a, "logits"_a, "likeliest"_a,
          nb::call_guard<nb::gil_scoped_release>());
}

void bind_sampling(nb::module_& m) {
  nb::class_<Logits>(m, "Logits")
      .def(
          "__init__",
          [](Logits* self, Address values, int64_t rows, int64_t vocabulary, int64_t stride) {
            new (self) Logits{at<float>(values), rows, vocabulary, stride};
          },
          "values"_a, "rows"_a, "vocabulary"_a, "stride"_a);
  m.def(
      "edit",
      [](const Logits& logits, int64_t count, const std::vector<Address>& arrays) {
        edit(logits, {count, at<const int32_t>(arrays.at(0)), at<const int32_t>(arrays.at(1)),
                      at<const float>(arrays.at(2)), at<const float>(arrays.at(3)),
                      at<const float>(arrays.at(4))});
      },
      "logits"_a, "count"_a, "arrays"_a);
  m.def(
      "mask",
      [](const Logits& logits, int64_t count, Address rows, Address allowed) {
        mask(logits, at<const int32_t>(rows), count, at<const uint32_t>(allowed));
      },
      "logits"_a, "count"_a, "rows"_a, "allowed"_a);
  m.def(
      "sample",
      [](Handle& handle, const Logits& logits, const std::vector<Address>& arrays, Address out) {
        const SampleRows rows{at<const float>(arrays.at(0)), at<const int32_t>(arrays.at(1)),
                              at<const float>(arrays.at(2)), at<const float>(arrays.at(3)),
                              at<const double>(arrays.at(4))};
        const nb::gil_scoped_release release;
        handle.backend->with_pool(
            [&](Pool& pool) { handle.sampler.sample(pool, logits, rows, at<int32_t>(out)); });
      },
      "backend"_a, "logits"_a, "arrays"_a, "out"_a);
  m.def(
      "top_logprobs",
      [](Handle& handle, const Logits& logits, Address rows, int64_t count, int64_t num_top,
         const std::vector<Address>& out) {
        const TopOutputs outputs{num_top, at<float>(out.at(0)), at<int32_t>(out.at(1)),
                                 at<float>(out.at(2))};
        const nb::gil_scoped_release release;
        handle.backend->with_pool([&](Pool& pool) {
          handle.sampler.top_logprobs(pool, logits, at<const int32_t>(rows), count, outputs);
        });
      },
      "backend"_a, "logits"_a, "rows"_a, "count"_a, "num_top"_a, "out"_a);
}

}  // namespace

NB_MODULE(_native, m) {
  // A forked child exits with what the parent's threads held: that is no leak of ours.
  pthread_atfork(nullptr, nullptr, [] { nb::set_leak_warnings(false); });
  m.def("variants", &runnable_variants);
  m.def(
      "packed_bytes",
      [](int type, int64_t n, int64_t k) {
        return packed_bytes(static_cast<WeightType>(type), n, k);
      },
      "type"_a, "n"_a, "k"_a);
  m.attr("NO_WINDOW") = kNoWindow;
  m.attr("RECORD_BYTES") = sizeof(QuantRecord);
  m.attr("ROW_TILE") = kRowTile;
  nb::class_<Handle>(m, "Backend")
      .def(nb::init<const std::string&, int>(), "isa"_a, "threads"_a)
      .def_prop_ro("threads", [](const Handle& self) { return self.backend->threads(); })
      .def(
          "peak",
          [](Handle& self, bool on_bytes) {
            return measure_peak(*self.backend, on_bytes ? Unit::kBytes : Unit::kFloats);
          },
          "on_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "close", [](Handle& self) { self.backend->close(); },
          nb::call_guard<nb::gil_scoped_release>());
  bind_values(m);
  bind_profile(m);
  bind_program(m);
  bind_sampling(m);
}

}  // namespace treadle
