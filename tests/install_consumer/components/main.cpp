#include <tessera/layers/layer_json.h>
#include <tessera/models/register_models.h>
#include <tessera/training/metrics.h>

#include <iostream>

// The linker takes from static libraries only what a program names, so the layers must be registered by a call.
int main() {
  tessera::register_models();
  const auto layer = tessera::layer_from_json(
      {{"class_name", "DeepFM"}, {"config", {{"hidden_units", {2}}}}});
  const tessera::training::AUC metric;
  std::cout << tessera::to_json(*layer)["class_name"] << " " << metric.name()
            << "\n";
}
