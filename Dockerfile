# Its build is ./run train: docker build -t tessera . && docker run tessera
# With --target test, it is ./run train and ./run test.
FROM debian:12-slim AS train
WORKDIR /tessera
COPY . .
RUN ./run train
ENTRYPOINT ["./run"]
CMD ["train"]

FROM train AS test
RUN ./run test

FROM train
