#include <tessera/nest.h>

#include <iostream>

int main() {
  std::cout << tessera::nest(1) << '\n';
}
