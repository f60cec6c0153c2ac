/** The state of a version as one word, its newest revision, and the one that an approval publishes. Pure. */
import type { Schemas } from "../api/client";

type Version = Schemas["VersionInfo"];
type Revision = Schemas["RevisionInfo"];

export function stateOf(version: Version): string {
  if (version.deleted_at) return "deleted";
  if (version.unpublished_at) return "unpublished";
  if (version.processing_state === "queued" || version.processing_state === "processing")
    return version.processing_state;
  if (version.processing_state === "failed") return "failed";
  return version.approval_state;
}

export function newestOf(version: Version): Revision | undefined {
  return version.revisions.find((each) => each.revision === version.revision) ?? version.revisions[0];
}

export interface Publishable {
  revision: number;
  /** The newest revision of an unpublished version has failed: the one that was approved before is published again. */
  isEarlier: boolean;
}

/** The revision that an approval would publish; null if there is none, or if it is served already. */
export function publishableOf(version: Version): Publishable | null {
  const { approved_revision: approved, revision, processing_state: processing } = version;
  if (version.deleted_at) return null;
  if (processing === "failed" && version.unpublished_at && approved && approved !== revision)
    return { revision: approved, isEarlier: true };
  const isServed = version.approval_state === "approved" && !version.unpublished_at;
  if (processing !== "completed" || isServed || newestOf(version)?.purged_at) return null;
  return { revision, isEarlier: false };
}
