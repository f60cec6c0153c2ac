/** The systems that submit data. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Confirm, Empty, Time } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { StateBadge } from "../components/state";
import { Table } from "../components/table";
import { toast } from "../components/toasts";
import { usePaged } from "../paged";
import { may } from "../session";

type Platform = Schemas["PlatformInfo"];

export function Platforms() {
  const [isAdding, setAdding] = useState(false);
  const [toggled, setToggled] = useState<Platform | null>(null);
  const paged = usePaged<Platform>("platform-list", (after, signal) =>
    api.get("/api/v1/platforms", { query: { after, limit: 100 }, signal }),
  );
  const canWrite = may("platforms:write");
  return (
    <Card
      title="Platforms"
      flush
      actions={
        canWrite && (
          <button type="button" class="button small" onClick={() => setAdding(true)}>
            Add a platform
          </button>
        )
      }
    >
      <PagedList paged={paged} empty={<Empty title="There are no platforms" />}>
        {(items) => (
          <Table
            keyOf={(platform) => platform.platform_id}
            items={items}
            columns={[
              { name: "Platform", cell: (platform) => <strong>{platform.display_name}</strong> },
              { name: "Id", cell: (platform) => <code>{platform.platform_id}</code> },
              {
                name: "State",
                cell: (platform) =>
                  platform.is_active ? (
                    <StateBadge state="alive" word="active" />
                  ) : (
                    <StateBadge state="paused" word="inactive" />
                  ),
              },
              {
                name: "References",
                wide: true,
                cell: (platform) =>
                  [...platform.required_refs, ...platform.optional_refs.map((name) => `${name} (optional)`)].join(", "),
              },
              { name: "Version reference", cell: (platform) => platform.version_ref ?? "–" },
              { name: "Changed", cell: (platform) => <Time at={platform.updated_at} /> },
              {
                name: "",
                cell: (platform) =>
                  canWrite && (
                    <button type="button" class="button small" onClick={() => setToggled(platform)}>
                      {platform.is_active ? "Deactivate…" : "Activate…"}
                    </button>
                  ),
              },
            ]}
          />
        )}
      </PagedList>
      {toggled && (
        <Confirm
          title={`${toggled.is_active ? "Deactivate" : "Activate"} ${toggled.display_name}?`}
          action={toggled.is_active ? "Deactivate" : "Activate"}
          isDanger={toggled.is_active}
          offersReason
          onClose={() => setToggled(null)}
          onConfirm={async (reason) => {
            await api.patch("/api/v1/platforms/{platform_id}", {
              path: { platform_id: toggled.platform_id },
              body: { is_active: !toggled.is_active, reason: reason || null },
            });
            toast("green", `${toggled.display_name} is changed`);
            paged.reload();
          }}
        >
          <p>
            {toggled.is_active
              ? "New submissions of this platform will be refused. Published data is not affected."
              : "The platform can submit again."}
          </p>
        </Confirm>
      )}
      {isAdding && <AddPlatform onClose={() => setAdding(false)} onDone={paged.reload} />}
    </Card>
  );
}

function AddPlatform({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [values, setValues] = useState({
    platform_id: "",
    display_name: "",
    required: "",
    optional: "",
    version_ref: "",
  });
  const field = (name: keyof typeof values, label: string, hint: string, isRequired = false) => (
    <div class="field">
      <label for={`platform-${name}`}>{label}</label>
      <input
        id={`platform-${name}`}
        class="input"
        required={isRequired}
        value={values[name]}
        onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
      />
      <span class="hint">{hint}</span>
    </div>
  );
  const list = (text: string) => text.split(/[\s,]+/).filter(Boolean);
  return (
    <Confirm
      title="Add a platform"
      action="Add"
      onClose={onClose}
      onConfirm={async () => {
        await api.post("/api/v1/platforms", {
          body: {
            platform_id: values.platform_id.trim(),
            display_name: values.display_name.trim(),
            required_refs: list(values.required),
            optional_refs: list(values.optional),
            version_ref: values.version_ref.trim() || null,
          },
        });
        toast("green", `${values.display_name} is added`);
        onDone();
      }}
    >
      {field("platform_id", "Id", "Short, such as ddh; it cannot be changed later", true)}
      {field("display_name", "Name", "The name that is displayed", true)}
      {field(
        "required",
        "Required references",
        "The platform's own ids that identify an asset, such as dataset_id, resource_id",
        true,
      )}
      {field("optional", "Optional references", "Other ids that the platform may send")}
      {field("version_ref", "Version reference", "The id that identifies the version, such as version_id")}
    </Confirm>
  );
}
