/** The state of a version as one word, and its newest revision. Pure. */
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
