#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks up raw values in a published model and recommends items, through the C interface. It needs NumPy:
    python3 serving_client.py libtessera_serving.so published '{"watched": [["Heat"], []], "age": [45, null]}'
"""
import json
import sys
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_float, c_int, c_int64, c_size_t

import numpy as np


def struct(**fields):
    return type("Struct", (Structure,), {"_fields_": list(fields.items())})


# The structs of tessera_serving.h, without the last fields of some, which this program does not read.
Handle = struct()
ColumnInfo = struct(name=c_char_p, type=c_char_p, takes_lists=c_int)
Pipeline = struct(columns=POINTER(ColumnInfo), num_columns=c_size_t)
Column = struct(name=c_char_p, integers=POINTER(c_int64), floats=POINTER(c_float), texts=POINTER(c_char_p),
                num_values=c_size_t, row_splits=POINTER(c_int64), num_examples=c_size_t)
Result = struct(features=POINTER(Column), num_features=c_size_t)
Request = struct(user=POINTER(c_int64), items=POINTER(c_int64), num_items=c_size_t, vector=POINTER(c_float),
                 dim=c_size_t, k=c_int64, exclude_seen=c_int, where=c_char_p, others=c_size_t * 6)
Found = struct(ids=POINTER(c_int64), scores=POINTER(c_float), num_items=c_size_t)
# The field of Column, its type and the missing value, by the type of a column. Other types have either numbers.
INTEGERS, FLOATS = ("integers", c_int64, -(2**63)), ("floats", c_float, np.nan)
FIELDS = {b"text": ("texts", c_char_p, None), b"float32": FLOATS}
library = CDLL(sys.argv[1])
library.tessera_error.restype = c_char_p


# snippet: client
def call(name, *arguments, result=c_int64):
    """Calls a function whose result has this type. Raises the library's error."""
    function = getattr(library, name)
    function.restype = result
    value = function(*arguments)
    if value < 0 if isinstance(value, int) else not value:
        raise RuntimeError(library.tessera_error().decode())
    return value


def make_column(info, values):
    """A column of texts or numbers, with None for missing ones, and with lists if an example has several."""
    num_examples, splits = len(values), None
    if any(isinstance(value, list) for value in values):
        splits = (c_int64 * (num_examples + 1))(*np.cumsum([0] + [len(value) for value in values]).tolist())
        values = [value for example in values for value in example]
    field, kind, missing = FIELDS.get(info.type, FLOATS if float in map(type, values) else INTEGERS)
    values = [missing if value is None else value.encode() if field == "texts" else value for value in values]
    return Column(name=info.name, num_values=len(values), row_splits=splits, num_examples=num_examples,
                  **{field: (kind * len(values))(*values)})


def look_up(version, ids):
    """The rows of a feature: [examples, dim]."""
    feature = c_int64(call("tessera_version_feature", version, ids.name))
    out = np.empty((ids.num_examples, call("tessera_version_feature_dim", version, feature)), np.float32)
    call("tessera_version_lookup", version, feature, ids.integers, c_size_t(ids.num_values), ids.row_splits,
         c_size_t(ids.num_examples), None, out.ctypes.data_as(POINTER(c_float)), c_size_t(out.size))
    return out
# end snippet


reader, values = POINTER(Handle)(), json.loads(sys.argv[3])
call("tessera_reader_open", sys.argv[2].encode(), None, byref(reader), result=c_int)
version = call("tessera_reader_version", reader, result=POINTER(Handle))
pipeline = call("tessera_version_pipeline", version, result=POINTER(Pipeline))[0]
columns = [make_column(info, values[info.name.decode()]) for info in pipeline.columns[: pipeline.num_columns]]
result = call("tessera_pipeline_apply", byref(pipeline), (Column * len(columns))(*columns), c_size_t(len(columns)),
              result=POINTER(Result))
for ids in result[0].features[: result[0].num_features]:
    print(ids.name.decode(), look_up(version, ids).tolist())
own = Request(items=ids.integers, num_items=ids.row_splits[1] if ids.row_splits else 1, k=1, exclude_seen=1)
found = call("tessera_version_recommend", version, byref(own), result=POINTER(Found))
print("items", found[0].ids[: found[0].num_items], found[0].scores[: found[0].num_items])
library.tessera_recommendation_release(found)
library.tessera_pipeline_result_release(result)  # a server also releases the others when it has new ones
