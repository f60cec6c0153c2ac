/** The texts and the style that people see with a layer: edited here, published by a command. */
import { useEffect, useState } from "preact/hooks";
import { ApiProblem, api, type Schemas } from "../api/client";
import { useResource } from "../data";
import { COLORMAPS, styleFrom } from "../map/tiles";
import { query } from "../router";
import { may } from "../session";
import { Banner, Card, Loaded, ProblemView, Time } from "./basics";
import { errorsByField } from "./schema_form";
import { StateBadge } from "./state";
import { toast } from "./toasts";

type Layer = Schemas["LayerMetadataInfo"];
const LAYER = "raster";

export function LayerMetadata({ asset }: { asset: Schemas["AssetInfo"] }) {
  const layer = useResource(`layer:${asset.asset_id}`, (signal) =>
    api.get("/api/v1/assets/{asset_id}/layers/{layer}/metadata", {
      path: { asset_id: asset.asset_id, layer: LAYER },
      signal,
    }),
  );
  return (
    <Loaded resource={layer}>
      {(data) => <Editor key={data.etag} asset={asset} layer={data} onChanged={layer.reload} />}
    </Loaded>
  );
}

interface Values {
  title: string;
  description: string;
  keywords: string;
  attribution: string;
  colormap: string;
  low: string;
  high: string;
}

function valuesOf(layer: Layer): Values {
  const style: Schemas["LayerStyle"] = layer.style ?? {};
  return {
    title: layer.title ?? "",
    description: layer.description ?? "",
    keywords: (layer.keywords ?? []).join(", "),
    attribution: layer.attribution ?? "",
    colormap: style.colormap_name ?? "",
    low: style.rescale?.[0] ? String(style.rescale[0][0]) : "",
    high: style.rescale?.[0] ? String(style.rescale[0][1]) : "",
  };
}

function styleOf(values: Values, before: Layer): Schemas["LayerStyle"] | null {
  const style: Schemas["LayerStyle"] = { ...before.style };
  delete style.colormap_name;
  delete style.rescale;
  if (values.colormap) style.colormap_name = values.colormap;
  if (values.low !== "" && values.high !== "") style.rescale = [[Number(values.low), Number(values.high)]];
  return Object.keys(style).length > 0 ? style : null;
}

function Editor({ asset, layer, onChanged }: { asset: Schemas["AssetInfo"]; layer: Layer; onChanged: () => void }) {
  const [values, setValues] = useState(valuesOf(layer));
  const [problem, setProblem] = useState<Error | null>(null);
  const [errors, setErrors] = useState<Record<string, string>>({});
  const [isBusy, setBusy] = useState(false);
  const canEdit = may("assets:review");
  const shown = styleFrom(query.value);
  useEffect(() => setProblem(null), [values]);
  const act = async (work: () => Promise<unknown>, done: string) => {
    setBusy(true);
    setProblem(null);
    setErrors({});
    try {
      await work();
      toast("green", done);
      onChanged();
    } catch (error) {
      setProblem(error as Error);
      if (error instanceof ApiProblem) setErrors(errorsByField(error.errors));
    } finally {
      setBusy(false);
    }
  };
  const save = () =>
    api.put("/api/v1/assets/{asset_id}/layers/{layer}/metadata", {
      path: { asset_id: asset.asset_id, layer: LAYER },
      headers: { "If-Match": layer.etag },
      body: {
        title: values.title.trim() || null,
        description: values.description.trim() || null,
        keywords: values.keywords
          .split(",")
          .map((word) => word.trim())
          .filter(Boolean),
        attribution: values.attribution.trim() || null,
        style: styleOf(values, layer),
      },
    });
  const command = (name: string) =>
    api.post("/api/v1/commands/{name}", { path: { name }, body: { asset: asset.asset_id } });
  const field = (name: keyof Values, label: string, hint = "", rows = 0) => (
    <div class="field">
      <label for={`layer-${name}`}>{label}</label>
      {rows > 0 ? (
        <textarea
          id={`layer-${name}`}
          class="input"
          rows={rows}
          disabled={!canEdit}
          aria-invalid={Boolean(errors[name])}
          value={values[name]}
          onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
        />
      ) : (
        <input
          id={`layer-${name}`}
          class="input"
          disabled={!canEdit}
          aria-invalid={Boolean(errors[name])}
          value={values[name]}
          onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
        />
      )}
      {hint && <span class="hint">{hint}</span>}
      {errors[name] && (
        <span class="error" role="alert">
          {errors[name]}
        </span>
      )}
    </div>
  );
  return (
    <Card
      title="Layer"
      actions={
        <span class="row">
          {layer.is_published ? (
            <StateBadge state="published" />
          ) : (
            <StateBadge state="unpublished" word="not published" />
          )}
          {layer.is_changed && <StateBadge state="due" word="edited since publication" />}
        </span>
      }
    >
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          act(save, "The layer is saved");
        }}
      >
        {field("title", "Title")}
        {field("description", "Description", "", 4)}
        {field("keywords", "Keywords", "Separated by commas")}
        {field("attribution", "Attribution")}
        <div class="form-grid">
          <div class="field">
            <label for="layer-colormap">Colours</label>
            <select
              id="layer-colormap"
              class="input"
              disabled={!canEdit}
              value={values.colormap}
              onChange={(event) => setValues({ ...values, colormap: event.currentTarget.value })}
            >
              <option value="">Default</option>
              {[...new Set([...COLORMAPS, values.colormap])].filter(Boolean).map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </div>
          {field("low", "Lowest value")}
          {field("high", "Highest value")}
        </div>
        {canEdit && (shown.colormap || shown.low !== null) && (
          <button
            type="button"
            class="button small"
            onClick={() =>
              setValues({
                ...values,
                colormap: shown.colormap ?? values.colormap,
                low: shown.low === null ? values.low : String(shown.low),
                high: shown.high === null ? values.high : String(shown.high),
              })
            }
          >
            Use the style of the map
          </button>
        )}
        {problem && <ProblemView problem={problem} />}
        {canEdit && (
          <div class="row wrap">
            <button type="submit" class="button" disabled={isBusy}>
              Save
            </button>
            <button
              type="button"
              class="button primary"
              disabled={isBusy}
              onClick={() =>
                act(async () => {
                  await save();
                  await command("metadata.publish");
                }, "The layer is published")
              }
            >
              Save and publish
            </button>
            {layer.is_published && (
              <button
                type="button"
                class="button danger"
                disabled={isBusy}
                onClick={() => act(() => command("metadata.unpublish"), "The layer is unpublished")}
              >
                Unpublish
              </button>
            )}
          </div>
        )}
        {layer.external === "due" && <Banner tone="amber" title="The external database is not up to date yet." />}
        <p class="muted">
          {layer.updated_at ? (
            <>
              Changed by {layer.updated_by}, <Time at={layer.updated_at} />
            </>
          ) : (
            "Not edited yet: the texts that came with the data are shown."
          )}
        </p>
      </form>
    </Card>
  );
}
