import type { PartKind } from "./rerun";

/**
 * The most characters that the API accepts in a reason, in the reason for a change of jobs (`jobReason`), and in the
 * name of a part of a job.
 */
export const MAX_LENGTHS: Record<"reason" | "jobReason" | PartKind, number> = {
  reason: 2000,
  jobReason: 1000,
  node: 80,
  stage: 64,
  failed_children: 64,
};
