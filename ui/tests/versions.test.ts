import { expect, test } from "vitest";
import type { Schemas } from "../src/api/client";
import { publishableOf } from "../src/components/versions";

type Version = Schemas["VersionInfo"];

function version(changed: Partial<Version>): Version {
  const pending = { revision: 2, approved_revision: null, approval_state: "pending_review" };
  return { processing_state: "completed", revisions: [{ revision: 2 }], ...pending, ...changed } as Version;
}

const approved = { approval_state: "approved", approved_revision: 2 } as const;
const unpublished = { unpublished_at: "2026-01-01T00:00:00Z" };

test("a processed revision that nobody has approved can be approved, also after a rejection", () => {
  expect(publishableOf(version({}))).toEqual({ revision: 2, isEarlier: false });
  expect(publishableOf(version({ approval_state: "rejected", approved_revision: 1 }))).toEqual({
    revision: 2,
    isEarlier: false,
  });
});

test("a version that is served, deleted, still processed or has failed cannot be approved", () => {
  expect(publishableOf(version(approved))).toBeNull();
  expect(publishableOf(version({ deleted_at: "2026-01-01T00:00:00Z" }))).toBeNull();
  expect(publishableOf(version({ processing_state: "processing" }))).toBeNull();
  expect(publishableOf(version({ processing_state: "failed", approved_revision: 1 }))).toBeNull();
});

test("an unpublished version can be published again", () => {
  expect(publishableOf(version({ ...approved, ...unpublished }))).toEqual({ revision: 2, isEarlier: false });
});

test("if the newest revision of an unpublished version has failed, the approved one is published again", () => {
  const failed = { processing_state: "failed", ...unpublished } as const;
  expect(publishableOf(version({ ...failed, approved_revision: 1 }))).toEqual({ revision: 1, isEarlier: true });
  expect(publishableOf(version({ ...failed, approved_revision: null }))).toBeNull();
});

test("a revision whose data was removed cannot be approved", () => {
  const revisions = [{ revision: 2, purged_at: "2026-01-01T00:00:00Z" }] as Version["revisions"];
  expect(publishableOf(version({ ...approved, ...unpublished, revisions }))).toBeNull();
});
