#include <tessera/layers/layer_json.h>
#include <tessera/models/register_models.h>
#include <tessera/training/metrics.h>

#include <iostream>

// The linker takes from static libraries only what a program names, so the models must be registered by a call. The
// target tessera::models registers the dense layers when the program starts.
int main() {
  tessera::layer_from_json(
      {{"class_name", "MLP"}, {"config", {{"units", {2}}}}});
  tessera::register_models();
  const auto layer = tessera::layer_from_json(
      {{"class_name", "DeepFM"}, {"config", {{"hidden_units", {2}}}}});
  const tessera::training::AUC metric;
  std::cout << tessera::to_json(*layer)["class_name"] << " " << metric.name()
            << "\n";
}
