import { expect, test } from "vitest";
import { ApiProblem } from "../src/api/client";
import { type UploadTransport, upload } from "../src/upload";
import { random } from "./random";

const problem = (status: number, code = "x") => new ApiProblem(status, "t", "d", code);

/** A server in memory that loses connections, before or after it has written, and sometimes writes only a part. */
function unreliable(seed: number, failureShare: number) {
  const next = random(seed);
  let stored = new Uint8Array();
  const use: UploadTransport = {
    create: async (file) => ({
      info: {
        upload_id: "u",
        state: "open",
        name: file.name,
        size_bytes: file.size,
        offset_bytes: stored.length,
        source: { container: "bronze", blob: "local/x" },
        sha256: null,
      },
      url: "/u",
    }),
    send: async (_url, offset, slice) => {
      if (next() < failureShare) throw problem(0);
      if (offset !== stored.length) throw problem(409, "upload.wrong-offset");
      const bytes = new Uint8Array(await slice.arrayBuffer());
      const isCut = next() < failureShare;
      const kept = isCut ? bytes.slice(0, Math.floor(bytes.length * next())) : bytes;
      stored = new Uint8Array([...stored, ...kept]);
      if (isCut || next() < failureShare) throw problem(0);
      return stored.length;
    },
    offset: async () => {
      if (next() < failureShare) throw problem(503);
      return stored.length;
    },
    info: async () => ({
      upload_id: "u",
      state: "finished",
      name: "x",
      size_bytes: stored.length,
      offset_bytes: stored.length,
      source: { container: "bronze", blob: "local/x" },
      sha256: null,
    }),
    pause: async () => {},
  };
  return { use, content: () => stored };
}

test.each(
  Array.from({ length: 25 }, (_, seed) => seed),
)("an upload over a bad connection has the same bytes (seed %i)", async (seed) => {
  const next = random(seed + 1000);
  const bytes = Uint8Array.from({ length: 1 + Math.floor(next() * 5000) }, () => Math.floor(next() * 256));
  const { use, content } = unreliable(seed, 0.3);
  const seen: number[] = [];

  await upload(
    new File([bytes], "x.tif"),
    null,
    (progress) => seen.push(progress.sent),
    new AbortController().signal,
    use,
  );

  expect([...content()]).toEqual([...bytes]);
  expect(seen.length).toBeGreaterThan(0);
});

test("a permanent failure ends the upload", async () => {
  const { use } = unreliable(1, 0);
  use.send = async () => {
    throw problem(422, "upload.checksum");
  };
  const sent = upload(new File(["abc"], "x.tif"), null, () => {}, new AbortController().signal, use);
  await expect(sent).rejects.toMatchObject({ code: "upload.checksum" });
});

test("a server that stays unavailable ends the upload", async () => {
  const { use } = unreliable(1, 1);
  await expect(
    upload(new File(["abc"], "x.tif"), null, () => {}, new AbortController().signal, use),
  ).rejects.toMatchObject({ status: expect.any(Number) });
});
