/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up row 3 and the pooled rows 3 and 5 of a published model, and prints the first number of each:
 * c_client DIRECTORY FEATURE */
#include <tessera/serving/tessera_serving.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int has_succeeded) {
  if (!has_succeeded) {
    fprintf(stderr, "%s\n", tessera_error());
    exit(1);
  }
}

int main(int argc, char** argv) {
  const tessera_reader_options options = {.follow = 1, .poll_seconds = 0.5};
  const int64_t ids[3] = {3, 3, 5};
  const int64_t row_splits[3] = {0, 1, 3};
  tessera_reader* reader = NULL;
  tessera_version* version;
  int64_t feature, dim, written;
  float* out;
  if (argc != 3) {
    fprintf(stderr, "expected a directory and a feature\n");
    return 2;
  }
  check(tessera_reader_open(argv[1], &options, &reader) == 0);
  version = tessera_reader_version(reader);
  check(version != NULL);
  feature = tessera_version_feature(version, argv[2]);
  check(feature >= 0);
  dim = tessera_version_feature_dim(version, feature);
  out = malloc(2 * (size_t)dim * sizeof(float));
  written = tessera_version_lookup(
      version, feature, ids, 3, row_splits, 2, NULL, out, 2 * (size_t)dim);
  check(written == 2 * dim);
  printf(
      "version %" PRId64 ": %.9g %.9g\n",
      tessera_version_number(version),
      (double)out[0],
      (double)out[dim]);
  free(out);
  tessera_version_release(version);
  tessera_reader_close(reader);
  return 0;
}
