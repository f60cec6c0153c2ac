/** API keys: create, rotate and revoke. A secret is shown once. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Banner, Card, Confirm, copyText, Dialog, Empty, Time } from "../components/basics";
import { PagedList } from "../components/paged_list";
import { StateBadge } from "../components/state";
import { Table } from "../components/table";
import { toast } from "../components/toasts";
import { expiryDaysOf, platformOf, scopesOf } from "../keys";
import { usePaged } from "../paged";
import { session } from "../session";

type Key = Schemas["KeyInfo"];
const SCOPES = ["viewer", "reviewer", "author", "operator", "admin", "b2b", "worker", "gateway", "monitor"];

export function Keys() {
  const [dialog, setDialog] = useState<{ kind: "create" } | { kind: "rotate" | "revoke"; key: Key } | null>(null);
  const [secret, setSecret] = useState<{ name: string; key: string } | null>(null);
  const paged = usePaged<Key>("keys", (after, signal) =>
    api.get("/api/v1/keys", { query: { after, limit: 100 }, signal }),
  );
  const close = () => setDialog(null);
  return (
    <Card
      title="API keys"
      flush
      actions={
        <button type="button" class="button small" onClick={() => setDialog({ kind: "create" })}>
          Create a key
        </button>
      }
    >
      <PagedList
        paged={paged}
        empty={
          <Empty title="There are no keys">
            <p>
              {session.value?.is_authentication_enabled
                ? "Create one for each person and program."
                : "Authentication is disabled: every caller is an administrator. Set AUTH_ENABLED=true before others can reach the platform."}
            </p>
          </Empty>
        }
      >
        {(items) => (
          <Table
            keyOf={(key) => key.key_id}
            items={items}
            columns={[
              { name: "Name", cell: (key) => <strong>{key.name}</strong> },
              { name: "Id", cell: (key) => <code>{key.key_id}</code> },
              { name: "Scopes", cell: scopesOf },
              { name: "Expires", cell: (key) => <Time at={key.expires_at} empty="never" /> },
              { name: "Last used", cell: (key) => <Time at={key.last_used_at} empty="never" /> },
              { name: "Created by", cell: (key) => key.created_by ?? "–" },
              {
                name: "",
                cell: (key) =>
                  key.revoked_at ? (
                    <StateBadge state="cancelled" word="revoked" />
                  ) : (
                    <span class="row">
                      <button type="button" class="button small" onClick={() => setDialog({ kind: "rotate", key })}>
                        Rotate…
                      </button>
                      <button
                        type="button"
                        class="button small danger"
                        onClick={() => setDialog({ kind: "revoke", key })}
                      >
                        Revoke…
                      </button>
                    </span>
                  ),
              },
            ]}
          />
        )}
      </PagedList>
      {dialog?.kind === "create" && (
        <CreateKey
          onClose={close}
          onCreated={(created) => {
            setSecret({ name: created.name, key: created.key });
            paged.reload();
          }}
        />
      )}
      {dialog?.kind === "rotate" && (
        <Confirm
          title={`Rotate ${dialog.key.name}?`}
          action="Rotate"
          offersReason
          onClose={close}
          onConfirm={async (reason) => {
            const created = await api.post("/api/v1/keys/{key_id}/rotate", {
              path: { key_id: dialog.key.key_id },
              body: { overlap_hours: 24, reason: reason || null },
            });
            setSecret({ name: created.name, key: created.key });
            paged.reload();
          }}
        >
          <p>The key gets a new secret. The current one is accepted for another 24 hours.</p>
        </Confirm>
      )}
      {dialog?.kind === "revoke" && (
        <Confirm
          title={`Revoke ${dialog.key.name}?`}
          action="Revoke"
          isDanger
          offersReason
          onClose={close}
          onConfirm={async (reason) => {
            await api.post("/api/v1/keys/{key_id}/revoke", {
              path: { key_id: dialog.key.key_id },
              body: { reason: reason || null },
            });
            toast("green", `${dialog.key.name} is revoked`);
            paged.reload();
          }}
        >
          <p>Requests with this key are refused from now on. This cannot be undone.</p>
        </Confirm>
      )}
      {secret && (
        <Dialog title={`The secret of ${secret.name}`} onClose={() => setSecret(null)}>
          <Banner tone="amber" title="The secret is shown only once. Copy it now." />
          <code class="secret anywhere">{secret.key}</code>
          <div class="buttons">
            <button type="button" class="button primary" onClick={() => copyText(secret.key, "Key")}>
              Copy
            </button>
          </div>
        </Dialog>
      )}
    </Card>
  );
}

function CreateKey({ onClose, onCreated }: { onClose: () => void; onCreated: (key: Schemas["CreatedKey"]) => void }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<string[]>(["viewer"]);
  const [platform, setPlatform] = useState("");
  const [days, setDays] = useState("90");
  return (
    <Confirm
      title="Create a key"
      action="Create"
      onClose={onClose}
      onConfirm={async () => {
        if (scopes.length === 0) throw new Error("Choose at least one scope.");
        onCreated(
          await api.post("/api/v1/keys", {
            body: {
              name: name.trim(),
              scopes,
              platform_id: platformOf(scopes, platform),
              expires_in_days: expiryDaysOf(days),
            },
          }),
        );
      }}
    >
      <div class="field">
        <label for="key-name">Name</label>
        <input
          id="key-name"
          class="input"
          required
          maxLength={64}
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <span class="hint">The person or program that uses the key. The name is recorded in histories.</span>
      </div>
      <fieldset class="scopes">
        <legend>Scopes</legend>
        {SCOPES.map((scope) => (
          <label key={scope} class="row">
            <input
              type="checkbox"
              checked={scopes.includes(scope)}
              onChange={(event) =>
                setScopes(event.currentTarget.checked ? [...scopes, scope] : scopes.filter((each) => each !== scope))
              }
            />
            {scope}
          </label>
        ))}
      </fieldset>
      {scopes.includes("b2b") && (
        <div class="field">
          <label for="key-platform">Platform</label>
          <input
            id="key-platform"
            class="input"
            required
            value={platform}
            onInput={(event) => setPlatform(event.currentTarget.value)}
          />
        </div>
      )}
      <div class="field">
        <label for="key-days">Days until it expires</label>
        <input
          id="key-days"
          class="input"
          inputMode="numeric"
          value={days}
          onInput={(event) => setDays(event.currentTarget.value)}
        />
        <span class="hint">If empty, the key does not expire.</span>
      </div>
    </Confirm>
  );
}
