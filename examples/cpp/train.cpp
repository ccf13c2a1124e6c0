// Trains with a step that `save.py` has written, without Python: ./train step.fg 20
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include "json.h"

int main(int, char** argv) {
  // FORMAT.md: a prelude of 64 bytes, a header in JSON, a signature, blobs that begin at the next multiple of 64
  std::ifstream stream(argv[1], std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(stream), {}};
  auto number = [](const char* at, int bytes) { uint64_t n = 0; std::memcpy(&n, at, bytes); return n; };
  uint64_t begin = (64 + number(&file[16], 8) + number(&file[12], 4) + 63) / 64 * 64;
  Json header = Json::parse(&file[64]);
  std::map<std::string, std::string> blobs;
  for (auto& blob : header["blobs"].items)
    blobs[blob["name"].text] = file.substr(begin + long(blob["offset"]), long(blob["length"]));

  // the last program is the one for an optimizer that has its state; the loader of libraries wants a file
  Json library = header["about"]["captures"].items.back()["library"];
  std::string path = std::filesystem::absolute(argv[1]).string() + ".so";
  std::ofstream(path, std::ios::binary) << blobs[library["code"].text];
  torch::inductor::AOTIModelContainerRunnerCpu step(path);

  // weights and optimizer state are a safetensors file: the length of its header, the header in JSON, data
  std::string& state = blobs["state.safetensors"];
  Json tensors = Json::parse(&state[8]);
  char* data = &state[8] + number(&state[0], 8);
  at::manual_seed(0);
  at::Tensor x = at::randn({16, 8}), y = x.sum(1, true);
  std::vector<at::Tensor> inputs;
  for (auto& input : library["inputs"].items)
    if (input.has("tensor")) {
      const Json& tensor = tensors[input["tensor"].text];
      std::vector<int64_t> shape;
      for (auto& size : tensor["shape"].items) shape.push_back(long(size));
      inputs.push_back(at::from_blob(data + long(tensor["data_offsets"].items[0]), shape, at::kFloat).clone());
    } else if (input.has("value")) {
      auto dtype = input["spec"].text == "int" ? at::kLong : at::kDouble;
      inputs.push_back(at::scalar_tensor(double(input["value"]), dtype));
    } else {
      inputs.push_back(input["name"].text == "x" ? x : y);
    }

  // the library writes new weights and momenta over those that it is given; its first output is the loss
  c10::InferenceMode without_autograd;
  for (int i = 0; i < std::stoi(argv[2]); ++i) std::printf("%.9g\n", step.run(inputs)[0].item<float>());
}
