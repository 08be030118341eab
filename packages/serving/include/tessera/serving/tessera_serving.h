/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESSERA_SERVING_H
#define TESSERA_SERVING_H

/* The C interface of tessera_serving. reader.h documents the same functions in C++.
 *
 *   tessera_reader* reader = NULL;
 *   if (tessera_reader_open("published", NULL, &reader) != 0) {
 *     fprintf(stderr, "%s\n", tessera_error());
 *   }
 *   tessera_version* version = tessera_reader_version(reader);
 *   int64_t movie = tessera_version_feature(version, "movie");
 *
 * Functions that fail return a negative number or NULL. tessera_error() then says why. No
 * exception leaves a function. Any number of threads may use a reader or a version. */

#include <tessera/serving/export.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_reader tessera_reader;
typedef struct tessera_version tessera_version;

/* See ReaderOptions. {0} has its defaults, but the reader does not follow new versions. If
 * the options are NULL, the reader follows. */
typedef struct tessera_reader_options {
  int follow; /* 1: a thread takes new versions */
  double poll_seconds; /* 0: one second */
  int copy_to_memory;
} tessera_reader_options;

/* The message of the last failed call of this thread. The pointer is never NULL, and it is
 * valid until the next call. */
TESSERA_SERVING_API const char* tessera_error(void);

/* Opens a directory and writes the reader to `out`. `options` may be NULL.
 * Returns 0, or -1. */
TESSERA_SERVING_API int tessera_reader_open(
    const char* directory,
    const tessera_reader_options* options,
    tessera_reader** out);
/* Accepts NULL. Versions stay valid. */
TESSERA_SERVING_API void tessera_reader_close(tessera_reader* reader);
/* Takes the newest version. Returns 1 if it is another one than before, 0 if not, or -1. */
TESSERA_SERVING_API int tessera_reader_refresh(tessera_reader* reader);
/* Reader::rollback() and Reader::unpin(). Both return 0, or -1. */
TESSERA_SERVING_API int tessera_reader_rollback(
    tessera_reader* reader,
    int64_t version);
TESSERA_SERVING_API int tessera_reader_unpin(tessera_reader* reader);

/* The version that serves now, or NULL after an error. Release it after the request. */
TESSERA_SERVING_API tessera_version* tessera_reader_version(
    tessera_reader* reader);
/* Accepts NULL. */
TESSERA_SERVING_API void tessera_version_release(tessera_version* version);
/* The number of the version, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_number(const tessera_version* version);
/* The step of the training, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_step(const tessera_version* version);

/* The number of a feature or table, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_feature(const tessera_version* version, const char* name);
TESSERA_SERVING_API int64_t
tessera_version_table(const tessera_version* version, const char* name);
/* The number of floats in a row of the feature or the table, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_feature_dim(const tessera_version* version, int64_t feature);
TESSERA_SERVING_API int64_t
tessera_version_table_dim(const tessera_version* version, int64_t table);

/* Version::lookup(). `row_splits` has num_examples + 1 numbers. If it is NULL, each id is an
 * example, and num_examples is num_ids. `weights` has one number per id, or is NULL. `out`
 * has out_size floats, enough for all examples. Returns the number of floats that were
 * written, or -1. */
TESSERA_SERVING_API int64_t tessera_version_lookup(
    const tessera_version* version,
    int64_t feature,
    const int64_t* ids,
    size_t num_ids,
    const int64_t* row_splits,
    size_t num_examples,
    const float* weights,
    float* out,
    size_t out_size);

/* Version::lookup_rows(). `out` has at least num_ids * tessera_version_table_dim() floats.
 * Returns 0, or -1. */
TESSERA_SERVING_API int tessera_version_lookup_rows(
    const tessera_version* version,
    int64_t table,
    const int64_t* ids,
    size_t num_ids,
    float* out,
    size_t out_size);

#ifdef __cplusplus
}
#endif

#endif
