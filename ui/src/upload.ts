/**
 * Resumable uploads to the bronze zone: a file is sent in slices, each at the offset that the server expects.
 *
 * After a lost connection the server is asked for its offset, and the upload continues there. After the page was
 * closed, the file is uploaded from the start, because no checksum is sent by which the server could recognise it.
 */
import { ApiProblem, csrfHeaders, fetchResponse, problemOf } from "./api/client";

export interface UploadInfo {
  upload_id: string;
  state: string;
  name: string;
  size_bytes: number;
  offset_bytes: number;
  source: { container: string; blob: string };
  sha256: string | null;
}

export interface UploadProgress {
  sent: number;
  total: number;
  isWaiting: boolean;
}

const SLICE = 8 * 2 ** 20;
const BASE = "/api/v1/uploads";

export interface UploadTransport {
  create(file: { name: string; size: number }, platform: string | null): Promise<{ info: UploadInfo; url: string }>;
  send(url: string, offset: number, slice: Blob, signal: AbortSignal): Promise<number>;
  offset(url: string, signal: AbortSignal): Promise<number>;
  info(url: string): Promise<UploadInfo>;
  pause(seconds: number): Promise<void>;
}

const httpTransport: UploadTransport = {
  async create(file, platform) {
    const response = await fetchResponse(BASE, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json", ...csrfHeaders() },
      body: JSON.stringify({
        name: file.name,
        size_bytes: file.size,
        if_exists: "rename",
        ...(platform ? { platform_id: platform } : {}),
      }),
    });
    if (!response.ok) throw await problemOf(response);
    const info = (await response.json()) as UploadInfo;
    return { info, url: `${BASE}/${encodeURIComponent(info.upload_id)}` };
  },
  async send(url, offset, slice, signal) {
    const response = await fetchResponse(url, {
      method: "PATCH",
      headers: {
        "Content-Type": "application/offset+octet-stream",
        "Upload-Offset": String(offset),
        "Tus-Resumable": "1.0.0",
        ...csrfHeaders(),
      },
      body: slice,
      signal,
    });
    if (!response.ok) throw await problemOf(response);
    return Number(response.headers.get("Upload-Offset") ?? offset + slice.size);
  },
  async offset(url, signal) {
    const response = await fetchResponse(url, { method: "HEAD", headers: { "Tus-Resumable": "1.0.0" }, signal });
    if (!response.ok) throw await problemOf(response);
    return Number(response.headers.get("Upload-Offset") ?? 0);
  },
  async info(url) {
    const response = await fetchResponse(url, { headers: { Accept: "application/json" } });
    if (!response.ok) throw await problemOf(response);
    return (await response.json()) as UploadInfo;
  },
  pause: (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000)),
};

/** Statuses after which the upload is continued: 0 is a lost connection, 409 a wrong offset. */
const RETRIED_STATUSES = new Set([0, 409, 423, 429, 502, 503, 504]);
const MAX_FAILURES = 12;

/** Uploads a file; the result has its location in the bronze zone. Temporary failures are retried. */
export async function upload(
  file: File,
  platform: string | null,
  onProgress: (progress: UploadProgress) => void,
  signal: AbortSignal,
  transport: UploadTransport = httpTransport,
): Promise<UploadInfo> {
  const { info, url } = await transport.create(file, platform);
  let offset = info.offset_bytes;
  let failures = 0;
  onProgress({ sent: offset, total: file.size, isWaiting: false });
  while (offset < file.size) {
    try {
      if (failures > 0) offset = await transport.offset(url, signal);
      if (offset >= file.size) break;
      offset = await transport.send(url, offset, file.slice(offset, offset + SLICE), signal);
      failures = 0;
      onProgress({ sent: offset, total: file.size, isWaiting: false });
    } catch (error) {
      if (!(error instanceof ApiProblem) || !RETRIED_STATUSES.has(error.status) || failures >= MAX_FAILURES)
        throw error;
      failures += 1;
      onProgress({ sent: offset, total: file.size, isWaiting: true });
      await transport.pause(Math.min(15, 2 ** failures / 4));
    }
  }
  return transport.info(url);
}
