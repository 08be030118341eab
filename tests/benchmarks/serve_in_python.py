# SPDX-License-Identifier: Apache-2.0
"""The click model of candidates_benchmark behind uvicorn, for compare_candidates.py.

An ASGI application without a framework, with orjson. The package of AOTInductor gets a batch that repeats the user. With
MAX_BATCH > 1, requests that wait are scored in one call. FOLDER, THREADS and MAX_BATCH are environment variables.
"""
import asyncio
import os

import numpy
import orjson
import torch

FOLDER, MAX_BATCH = os.environ["FOLDER"], int(os.environ["MAX_BATCH"])
USERS = [f"user{i:02}" for i in range(13)]
ITEMS = [f"item{i:02}" for i in range(13)]

torch.set_num_threads(1)
package = torch._inductor.aoti_load_package(f"{FOLDER}/click.1.aoti.pt2")
waiting = []
has_work = None


def score(requests):
    counts = [len(request["candidates"][ITEMS[0]]) for request in requests]
    tensors = [
        torch.from_numpy(numpy.repeat(numpy.array([request["user"][name] for request in requests]), counts))
        for name in USERS
    ]
    for name in ITEMS:
        ids = [numpy.array(request["candidates"][name]) for request in requests]
        tensors.append(torch.from_numpy(ids[0] if len(ids) == 1 else numpy.concatenate(ids)))
    numbers = numpy.array([request["user"]["numbers"] for request in requests], dtype=numpy.float32)
    tensors.append(torch.from_numpy(numpy.repeat(numbers, counts, axis=0)))
    scores = package(*tensors)
    return numpy.split((scores if torch.is_tensor(scores) else scores[0]).numpy(), numpy.cumsum(counts)[:-1])


async def work():
    while True:
        await has_work.wait()
        batch = waiting[:MAX_BATCH]
        del waiting[:MAX_BATCH]
        if not waiting:
            has_work.clear()
        for (_, done), scores in zip(batch, score([request for request, _ in batch])):
            if not done.cancelled():
                done.set_result(scores)
        await asyncio.sleep(0)


async def app(scope, receive, send):
    global has_work
    if scope["type"] == "lifespan":
        has_work = asyncio.Event()
        task = asyncio.create_task(work())
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        task.cancel()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    request = orjson.loads(body)
    if MAX_BATCH == 1:
        scores = score([request])[0]
    else:
        done = asyncio.get_running_loop().create_future()
        waiting.append((request, done))
        has_work.set()
        scores = await done
    answer = orjson.dumps({"scores": scores}, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
